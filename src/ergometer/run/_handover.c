/* One side of a game of ball between two cores; handover.py plays both. */
#include <stdint.h>
#include <time.h>

enum { THROWS_BEFORE = 100, LOOKS = 4096 };

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Waits until the turn is mine and gives it to the other, again and again. ns for all rounds, after some that do not
   count; -1 if the other does not answer until limit_ns are over. */
int64_t handover(int32_t *turn, int32_t mine, int32_t rounds, int64_t limit_ns) {
  int64_t first = now_ns(), start = first;
  for (int32_t round = -THROWS_BEFORE; round < rounds; round++) {
    if (round == 0) start = now_ns();
    for (uint32_t looks = 1; __atomic_load_n(turn, __ATOMIC_ACQUIRE) != mine; looks++)
      if (looks % LOOKS == 0 && now_ns() - first > limit_ns) return -1;
    __atomic_store_n(turn, 1 - mine, __ATOMIC_RELEASE);
  }
  return now_ns() - start;
}
