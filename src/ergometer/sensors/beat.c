/* The sampler's inner loop: reads small files and clocks on a fixed beat into the layout of the raw file.
 *
 * A tick wakes up with cold caches in the midst of what it measures; an interpreter would cost three times as much.
 * The structures are those of _beat.py. Whatever is not a file or a clock stays in Python: beat() returns for it.
 */

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TICK = 11, ENTRY = 4, LOST = 0xFFFF, ABANDONED = 2 };

struct source {
    int32_t index, size, files, clock, length, failed;
    int32_t *descriptors;
    char *last;
};

struct group {
    int64_t period, due;
    int32_t number, count;
    struct source *sources;
};

struct beat {
    int64_t period, next, until, since;
    int32_t stop, reading, failures, count, used, full;
    struct group *groups;
    char *buffer;
};

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int read_files(const struct source *s, char *into) {
    int length = 0;
    for (int i = 0; i < s->files; i++) {
        if (i) into[length++] = '\n';
        ssize_t got = pread(s->descriptors[i], into + length, s->size, 0);
        if (got < 0) return -1;
        length += got;
    }
    return length;
}

/* In digits, by hand: all of sprintf would have to come from memory at every tick. */
static int read_clock(const struct source *s, char *into) {
    struct timespec t;
    if (clock_gettime(s->clock, &t)) { /* the clock of a process that has ended stands still */
        int length = s->length > 0 ? s->length : 0;
        memcpy(into, s->last, length);
        return length;
    }
    char digits[20], *at = digits + sizeof digits;
    uint64_t left = (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    do *--at = '0' + left % 10; while (left /= 10);
    memcpy(into, at, digits + sizeof digits - at);
    return digits + sizeof digits - at;
}

static char *entry(char *at, int index, int length) {
    uint16_t head[2] = {(uint16_t)index, (uint16_t)length};
    memcpy(at, head, ENTRY);
    return at + ENTRY;
}

/* 0 if the tick was given up: its thread hung, and another has taken over. */
static int tick(struct beat *b, struct group *g) {
    char *start = b->buffer + b->used, *at = start + TICK;
    uint16_t entries = 0;
    uint8_t number = g->number;
    int64_t stamp = b->since = now();
    for (struct source *s = g->sources; s < g->sources + g->count; s++) {
        if (s->failed) continue;
        __atomic_store_n(&b->reading, s->index, __ATOMIC_RELEASE);
        int length = s->files ? read_files(s, at + ENTRY) : read_clock(s, at + ENTRY);
        int failed = length < 0 ? errno : 0;
        if (__atomic_load_n(&b->stop, __ATOMIC_ACQUIRE) == ABANDONED) return 0;
        if (failed) {
            s->failed = failed;
            b->failures++;
            at = entry(at, s->index, LOST);
            entries++;
        } else if (length != s->length || memcmp(at + ENTRY, s->last, length)) {
            memcpy(s->last, at + ENTRY, length);
            s->length = length;
            at = entry(at, s->index, length) + length;
            entries++;
        }
    }
    __atomic_store_n(&b->reading, -1, __ATOMIC_RELEASE);
    memcpy(start, &stamp, 8);
    memcpy(start + 8, &number, 1);
    memcpy(start + 9, &entries, 2);
    __atomic_store_n(&b->used, at - b->buffer, __ATOMIC_RELEASE);
    return 1;
}

/* Beats until the given time, or until told to stop, or a source fails, or the buffer is full. The beat reached. */
int64_t beat(struct beat *b) {
    for (;;) {
        struct timespec at = {b->next / 1000000000LL, b->next % 1000000000LL};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {}
        int64_t done = b->next;
        for (struct group *g = b->groups; g < b->groups + b->count; g++)
            if (done >= g->due) {
                g->due = done + g->period;
                if (!tick(b, g)) return done;
            }
        b->next += b->period;
        int64_t late = now() - b->next;
        if (late > 0) b->next += (late + b->period - 1) / b->period * b->period; /* skip, do not catch up in a burst */
        if (done >= b->until || b->failures || b->used > b->full || __atomic_load_n(&b->stop, __ATOMIC_ACQUIRE))
            return done;
    }
}
