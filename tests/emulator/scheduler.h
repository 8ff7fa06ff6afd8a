/* Which threads run next. Included after `run_block` and `Thread`, which are the kernel's own. */

static void run_warp(Machine *m, Thread *warp, int n) {
  Thread *group[WARP];
  for (uint64_t steps = 0;; steps++) {
    int next = INT32_MAX, together = INT32_MAX, count = 0;
    for (int k = 0; k < n; k++) {
      if (warp[k].state != RUNS) continue;
      int *first = is_together[warp[k].block] ? &together : &next;
      if (warp[k].block < *first) *first = warp[k].block;
    }
    if (next == INT32_MAX) next = together; /* all are where they need each other */
    if (next == INT32_MAX) return;
    if (steps > 100000000) fail(m, "a warp does not end");
    for (int k = 0; k < n; k++)
      if (warp[k].state == RUNS && warp[k].block == next) group[count++] = &warp[k];
    run_block(m, group, count, next);
  }
}

static uint32_t drawn(uint64_t *seed, uint32_t below) {
  *seed = *seed * 6364136223846793005u + 1442695040888963407u;
  return (*seed >> 33) % below;
}

static void shuffle(uint32_t *order, uint32_t count, uint64_t *seed) {
  for (uint32_t k = 0; k < count; k++) order[k] = k;
  for (uint32_t k = count; k > 1; k--) {
    uint32_t other = drawn(seed, k), moved = order[k - 1];
    order[k - 1] = order[other];
    order[other] = moved;
  }
}

static void run_program(Machine *m, Thread *threads, uint64_t *seed) {
  uint32_t warps = m->threads / WARP, order[WARP];
  memset(threads, 0xA5, m->threads * sizeof(Thread)); /* what nobody has written, nobody may count on */
  memset(m->shared, 0xA5, m->shared_bytes);
  for (uint32_t k = 0; k < m->threads; k++) {
    threads[k].block = 0;
    threads[k].state = RUNS;
    threads[k].tid = k;
  }
  for (;;) {
    uint32_t waiting = 0, ended = 0;
    shuffle(order, warps, seed);
    for (uint32_t k = 0; k < warps; k++) run_warp(m, threads + order[k] * WARP, WARP);
    for (uint32_t k = 0; k < m->threads; k++) {
      waiting += threads[k].state == WAITS;
      ended += threads[k].state == ENDED;
    }
    if (ended == m->threads) return;
    if (waiting != m->threads) fail(m, "%u of %u threads wait for those that have ended", waiting, m->threads);
    for (uint32_t k = 0; k < m->threads; k++) threads[k].state = RUNS;
  }
}

/* A launch: the programs one after the other, in a drawn order. 0, or 1 and what was wrong. */
int run(const uint32_t *grid, uint32_t threads, uint32_t shared_bytes, void **parameters, const Region *regions,
        int region_count, uint64_t seed, char *message, size_t message_bytes) {
  uint32_t programs = grid[0] * grid[1] * grid[2];
  Machine m = {.grid = {grid[0], grid[1], grid[2]}, .threads = threads, .shared_bytes = shared_bytes, .regions = regions,
               .region_count = region_count, .own = own, .own_count = sizeof own / sizeof *own, .parameters = parameters,
               .message = message, .message_bytes = message_bytes};
  Thread *all = aligned_alloc(64, (threads * sizeof(Thread) + 63) / 64 * 64);
  uint32_t *order = malloc(programs * sizeof(uint32_t));
  m.shared = aligned_alloc(64, (shared_bytes + 127) / 64 * 64);
  int failed = setjmp(m.stop);
  if (!failed) {
    shuffle(order, programs, &seed);
    for (uint32_t k = 0; k < programs; k++) {
      m.program[0] = order[k] % grid[0];
      m.program[1] = order[k] / grid[0] % grid[1];
      m.program[2] = order[k] / grid[0] / grid[1];
      run_program(&m, all, &seed);
    }
  }
  free(all);
  free(order);
  free(m.shared);
  return failed;
}
