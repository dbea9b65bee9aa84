/* An MPI payload: the ranks share a chunk of events, and rank 0 writes what all of them found.

     mpicc -O2 -o darts darts.c
     mpiexec -n 4 ./darts --first 0 --events 8 --seed 1 --darts 1000000 --out darts.txt

   Rank r of R throws darts for the events first + r, first + r + R, ... Each event has a seed of its own, `seed` plus its
   place in the chunk, so that the result does not depend on the number of ranks. Rank 0 writes one line per event, in
   their order: event, rank, node, darts in the circle. An event that fails on any rank fails the chunk: MPI_Abort ends all
   ranks, and Tidemill runs the chunk again, in halves if need be. */

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct event {
    long long number;
    long long hits;
    int rank;
    char node[44];
};

static long long option(int argc, char **argv, const char *name, long long otherwise)
{
    for (int at = 1; at + 1 < argc; at += 2)
        if (strcmp(argv[at], name) == 0)
            return atoll(argv[at + 1]);
    return otherwise;
}

static const char *text_option(int argc, char **argv, const char *name, const char *otherwise)
{
    for (int at = 1; at + 1 < argc; at += 2)
        if (strcmp(argv[at], name) == 0)
            return argv[at + 1];
    return otherwise;
}

/* splitmix64 (Steele, Lea and Flood, OOPSLA 2014): any seed gives a good stream */
static uint64_t next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static long long throw_darts(uint64_t seed, long long darts)
{
    long long hits = 0;
    for (long long dart = 0; dart < darts; dart++) {
        double x = (double)(next(&seed) >> 11) / 9007199254740992.0;
        double y = (double)(next(&seed) >> 11) / 9007199254740992.0;
        hits += x * x + y * y < 1.0;
    }
    return hits;
}

static int compare(const void *a, const void *b)
{
    long long left = ((const struct event *)a)->number, right = ((const struct event *)b)->number;
    return (left > right) - (left < right);
}

static void write_all(const char *path, struct event *events, long long count)
{
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        perror(path);
        MPI_Abort(MPI_COMM_WORLD, 2);
        return;
    }
    qsort(events, count, sizeof *events, compare);
    for (long long at = 0; at < count; at++)
        fprintf(file, "%lld %d %s %lld\n", events[at].number, events[at].rank, events[at].node, events[at].hits);
    if (fclose(file) != 0) {
        perror(path);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long long first = option(argc, argv, "--first", 0), count = option(argc, argv, "--events", 1);
    long long seed = option(argc, argv, "--seed", 1), darts = option(argc, argv, "--darts", 1000);
    long long sleep_ms = option(argc, argv, "--sleep-ms", 0);
    const char *node = getenv("SLURMD_NODENAME");
    char host[44] = "";
    if (node == NULL && gethostname(host, sizeof host - 1) == 0)
        node = host;

    int mine = (int)((count - rank + ranks - 1) / ranks) * (rank < count);
    struct event *own = calloc(mine + 1, sizeof *own);
    for (int at = 0; at < mine; at++) {
        long long place = rank + (long long)at * ranks;
        own[at].number = first + place;
        own[at].rank = rank;
        snprintf(own[at].node, sizeof own[at].node, "%.43s", node);
        own[at].hits = throw_darts((uint64_t)(seed + place), darts);
        usleep((useconds_t)sleep_ms * 1000);
    }

    int bytes = mine * (int)sizeof *own;
    int *lengths = calloc(ranks, sizeof *lengths), *starts = calloc(ranks, sizeof *starts);
    struct event *all = calloc(count + 1, sizeof *all);
    MPI_Gather(&bytes, 1, MPI_INT, lengths, 1, MPI_INT, 0, MPI_COMM_WORLD);
    for (int from = 1; from < ranks; from++)
        starts[from] = starts[from - 1] + lengths[from - 1];
    MPI_Gatherv(own, bytes, MPI_BYTE, all, lengths, starts, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank == 0)
        write_all(text_option(argc, argv, "--out", "darts.txt"), all, count);
    MPI_Finalize();
    return 0;
}
