/* A CUDA driver that notes what it is asked to launch, and hands it to whoever wants it. Triton's own launcher runs on
   it. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
  unsigned grid[3], block[3], shared;
  void *stream, *attributes;
  unsigned count;
} Config;

enum { MOST = 64 };
static uint64_t parameters[MOST];
static Config last;
static int launched, wanted;

void noted_parameters(int count) { wanted = count < MOST ? count : MOST; }
uint64_t noted_parameter(int k) { return parameters[k]; }
unsigned noted_programs(void) { return last.grid[0]; }
uint64_t noted_stream(void) { return (uint64_t)last.stream; }
int noted_launches(void) { return launched; }

typedef int Launcher(void *function, const unsigned *grid, unsigned threads, unsigned shared, void **values);
static Launcher *launcher;
void launch_by(Launcher *chosen) { launcher = chosen; }

int cuLaunchKernelEx(const Config *config, void *function, void **values, void **extra) {
  launched++;
  last = *config;
  for (int k = 0; k < wanted; k++) memcpy(&parameters[k], values[k], 8);
  return launcher ? launcher(function, config->grid, config->block[0], config->shared, values) : 0;
}

static char context;
int cuCtxGetCurrent(void **p) { *p = &context; return 0; }
int cuCtxSetCurrent(void *p) { return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuCtxGetLimit(size_t *value, int limit) { *value = 0; return 0; }
int cuCtxSetLimit(int limit, size_t value) { return 0; }
int cuDriverGetVersion(int *version) { *version = 12080; return 0; }
int cuDeviceGet(int *device, int k) { *device = k; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = 232448; return 0; }
int cuDevicePrimaryCtxRetain(void **p, int device) { *p = &context; return 0; }
int cuFuncGetAttribute(int *value, int attribute, void *function) { *value = attribute ? 0 : 1024; return 0; }
int cuFuncSetAttribute(void *function, int attribute, int value) { return 0; }
int cuFuncSetCacheConfig(void *function, int config) { return 0; }
static char failed[1024] = "none";
void say_failed(const char *text) { strncpy(failed, text, sizeof failed - 1); }
int cuGetErrorString(int error, const char **text) { *text = failed; return 0; }
static char functions[1 << 20];
int cuModuleGetFunction(void **function, void *module, const char *name) {
  static int count;
  *function = &functions[count++];
  return 0;
}
int cuModuleLoadData(void **module, const void *data) { *module = &context; return 0; }
int cuModuleUnload(void *module) { return 0; }
int cuStreamIsCapturing(void *stream, int *status) { *status = 0; return 0; }
int cuPointerGetAttribute(uint64_t *value, int attribute, uint64_t pointer) { *value = pointer; return 0; }
