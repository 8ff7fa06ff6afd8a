/* What a kernel that `translate.py` has made of PTX runs on: threads in warps, memory that is looked at before it is
   reached, and what the instructions mean where C has no word for it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARP = 32 };
typedef enum { RUNS, WAITS, ENDED } State;

typedef struct {
  uint64_t first, end;
} Region;

typedef struct {
  uint32_t grid[3], program[3], threads;
  uint8_t *shared;
  uint32_t shared_bytes;
  const Region *regions, *own; /* tensors, and the module's variables */
  int region_count, last_region, own_count;
  void **parameters;
  char *message;
  size_t message_bytes;
  jmp_buf stop;
} Machine;

static void fail(Machine *m, const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(m->message, m->message_bytes, format, values);
  va_end(values);
  longjmp(m->stop, 1);
}

/* ---- memory ---- */

static void *global_at(Machine *m, uint64_t address, unsigned bytes, const char *what) {
  if (address % bytes) fail(m, "%s: address %#lx is no multiple of %u", what, address, bytes);
  for (int k = 0; k < m->region_count; k++) {
    const Region *each = &m->regions[m->last_region];
    if (address >= each->first && address + bytes <= each->end) return (void *)address;
    m->last_region = (m->last_region + 1) % m->region_count;
  }
  for (int k = 0; k < m->own_count; k++)
    if (address >= m->own[k].first && address + bytes <= m->own[k].end) return (void *)address;
  fail(m, "%s: %u bytes at %#lx are in no tensor of the launch", what, bytes, address);
  return 0;
}

static void *shared_at(Machine *m, uint64_t address, unsigned bytes, const char *what) {
  if (address % bytes) fail(m, "%s: address %#lx is no multiple of %u", what, address, bytes);
  if (address + bytes > m->shared_bytes) fail(m, "%s: byte %#lx of %u shared", what, address, m->shared_bytes);
  return m->shared + address;
}

static void *local_at(Machine *m, uint8_t *local, uint32_t all, uint64_t address, unsigned bytes, const char *what) {
  if (address % bytes) fail(m, "%s: address %#lx is no multiple of %u", what, address, bytes);
  if (address + bytes > all) fail(m, "%s: byte %#lx of %u local", what, address, all);
  return local + address;
}

/* A number of a matrix in shared memory that a descriptor of `wgmma` is for: the one at `j` along what is added up,
   and at `outer` along the other dimension, which the numbers follow each other in if it is `transposed`. */
static void *element_at(Machine *m, uint64_t descriptor, int outer, int j, unsigned bytes, int transposed,
                        const char *what) {
  static const unsigned widths[] = {16, 128, 64, 32}; /* of rows whose parts of 16 bytes change places; 16: do not */
  uint64_t start = (descriptor & 0x3FFF) << 4, leading = descriptor >> 12 & 0x3FFF0, stride = descriptor >> 28 & 0x3FFF0;
  unsigned width = widths[descriptor >> 62], along = (transposed ? outer : j) * bytes, across = transposed ? j : outer;
  if (descriptor >> 49 & 7) fail(m, "%s: a base offset", what);
  uint64_t far = transposed && width == 16 ? stride : leading, next = transposed && width == 16 ? leading : stride;
  uint64_t address = start + along % width + along / width * far + across % 8 * width + across / 8 * next;
  return shared_at(m, address ^ (address >> 7 & (width / 16 - 1)) << 4, bytes, what);
}

/* ---- numbers and their bits ---- */

static float f32(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static double f64(uint64_t bits) { double x; memcpy(&x, &bits, 8); return x; }
static uint32_t f32_bits(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }
static uint64_t f64_bits(double x) { uint64_t bits; memcpy(&bits, &x, 8); return bits; }

static float toward_zero(double x) {
  float nearest = (float)x;
  return fabs((double)nearest) > fabs(x) ? nextafterf(nearest, 0) : nearest;
}

static float bf16(uint16_t bits) { return f32((uint32_t)bits << 16); }
static uint16_t bf16_bits(float x) {
  uint32_t bits = f32_bits(x);
  if (x != x) return 0x7FFF;
  return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
}
static float f16(uint16_t bits) {
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float x = exponent == 31 ? (fraction ? NAN : INFINITY)
            : exponent     ? ldexpf(1024 + fraction, exponent - 25)
                           : ldexpf(fraction, -24);
  return bits >> 15 ? -x : x;
}
static uint16_t f16_bits(float x) {
  uint16_t sign = signbit(x) ? 0x8000 : 0;
  if (x != x) return 0x7FFF;
  x = fabsf(x);
  if (x >= 65520) return sign | 0x7C00;
  if (x < 0x1p-14f) return sign | (uint16_t)rintf(x * 0x1p24f);
  int exponent = ilogbf(x);
  return sign | (uint16_t)((exponent + 14) * 1024 + (int)rintf(ldexpf(x, 10 - exponent)));
}

/* A number of single precision from which one of half precision is the nearest to x, too. */
static float odd(double x) {
  float found = (float)x;
  if (found == x || found != found || isinf(found)) return found;
  if (fabs(found) > fabs(x)) found = nextafterf(found, 0);
  return f32(f32_bits(found) | 1);
}

/* The nearest number of 11 digits, of two the one away from 0; what is beyond 11 digits tensor cores do not see. */
static float tf32(float x) { return isfinite(x) ? f32((f32_bits(x) + 0x1000) & ~0x1FFFu) : x; }
static float seen_as_tf32(uint32_t bits) { return f32(bits & ~0x1FFFu); }

static float ftz(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

#define EXTREMES(T, name)                                                                   \
  static T name##_min(T a, T b) { return a != a ? b : b != b ? a : a == b ? (signbit(a) ? a : b) : a < b ? a : b; } \
  static T name##_max(T a, T b) { return a != a ? b : b != b ? a : a == b ? (signbit(a) ? b : a) : a > b ? a : b; } \
  static T name##_min_nan(T a, T b) { return a != a || b != b ? NAN : name##_min(a, b); }   \
  static T name##_max_nan(T a, T b) { return a != a || b != b ? NAN : name##_max(a, b); }
EXTREMES(float, f32)
EXTREMES(double, f64)

/* A result that hardware only approximates: the next number up or down in two of three cases, as the argument's bits
   have it, where the result is not exact. */
static float approximate(double exact, double argument) {
  float nearest = (float)exact;
  if (nearest == exact || nearest != nearest) return nearest;
  uint64_t hash = f64_bits(argument) * 0x9E3779B97F4A7C15u >> 33;
  float wrong = hash % 3 == 0 ? nearest : nextafterf(nearest, hash % 3 == 1 ? INFINITY : -INFINITY);
  return isinf(wrong) || wrong == 0 ? nearest : wrong;
}

static double approximate_double(double nearest, double argument) {
  if (!isfinite(nearest) || nearest == 0) return nearest;
  uint64_t hash = f64_bits(argument) * 0x9E3779B97F4A7C15u >> 33;
  return hash % 3 == 0 ? nearest : nextafter(nearest, hash % 3 == 1 ? INFINITY : -INFINITY);
}

static double rough_reciprocal(double x) {
  double found = 1 / f64(f64_bits(x) & ~0xFFFFFFFFul);
  if (fabs(found) < 0x1p-1022) return copysign(0, found);
  return isfinite(found) ? f64(f64_bits(found) & ~0xFFFFFFFFul) : found;
}

#define TO_INTEGER(T, name, least, most)                         \
  static T name(double x) {                                      \
    return x != x ? 0 : x <= (double)least ? least : x >= (double)most ? most : (T)x; \
  }
TO_INTEGER(int16_t, to_s16, INT16_MIN, INT16_MAX)
TO_INTEGER(uint16_t, to_u16, 0, UINT16_MAX)
TO_INTEGER(int8_t, to_s8, INT8_MIN, INT8_MAX)
TO_INTEGER(uint8_t, to_u8, 0, UINT8_MAX)
TO_INTEGER(int32_t, to_s32, INT32_MIN, INT32_MAX)
TO_INTEGER(uint32_t, to_u32, 0, UINT32_MAX)
TO_INTEGER(int64_t, to_s64, INT64_MIN, INT64_MAX)
TO_INTEGER(uint64_t, to_u64, 0, UINT64_MAX)

static uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
  uint64_t bytes = (uint64_t)b << 32 | a;
  uint32_t found = 0;
  for (int k = 0; k < 4; k++) {
    uint32_t chosen = selector >> 4 * k & 15, byte = bytes >> 8 * (chosen & 7) & 255;
    found |= (chosen & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * k;
  }
  return found;
}

static uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
  uint32_t found = 0;
  for (int k = 0; k < 8; k++)
    if (table >> k & 1) found |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
  return found;
}

static uint64_t bfe(uint64_t a, uint32_t at, uint32_t count, int bits, int is_signed) {
  at &= 255, count &= 255;
  uint64_t found = 0, sign = is_signed && count ? a >> (at + count > (uint32_t)bits ? bits - 1 : at + count - 1) & 1 : 0;
  for (int k = 0; k < bits; k++) {
    uint64_t bit = (uint32_t)k < count && k + at < (uint32_t)bits ? a >> (k + at) & 1 : sign;
    found |= bit << k;
  }
  return found;
}

static uint64_t bfi(uint64_t a, uint64_t b, uint32_t at, uint32_t count, int bits) {
  for (uint32_t k = 0; k < (count & 255) && k + (at & 255) < (uint32_t)bits; k++) {
    uint64_t place = 1ull << (k + (at & 255));
    b = a >> k & 1 ? b | place : b & ~place;
  }
  return b;
}

/* ---- the exchange of values between the lanes of a warp ---- */

enum { UP, DOWN, BFLY, IDX };
static int source_lane(int mode, int lane, uint32_t by, uint32_t clamp, int *is_within) {
  int b = by & 31, mask = clamp >> 8 & 31, c = clamp & 31;
  int most = (lane & mask) | (c & ~mask), least = lane & mask, from = lane;
  switch (mode) {
    case UP: from = lane - b; *is_within = from >= most; break;
    case DOWN: from = lane + b; *is_within = from <= most; break;
    case BFLY: from = lane ^ b; *is_within = from <= most; break;
    default: from = least | (b & ~mask); *is_within = from <= most;
  }
  return *is_within ? from : lane;
}
