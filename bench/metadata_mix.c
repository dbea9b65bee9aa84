/* Metadata operations of all kinds, in a number that is always the same: 8 forks of 4 threads each, in a directory of
 * their own, relative to it, to an open directory and to none; each fork ends by executing a (static) program.
 *
 *     metadata_mix ROUNDS [PROGRAM]      with PROGRAM: forks that execute `PROGRAM ROUNDS`
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FORKS = 8, THREADS = 4 };
static int rounds;

static void work(long seed)
{
    struct stat status;
    char path[64], text[64];
    for (int i = 0; i < rounds; i++) {
        snprintf(path, sizeof path, "/no/such/%ld/%d", seed, i);
        stat(path, &status);
        int fd = open("/etc/passwd", O_RDONLY);
        if (fd >= 0)
            close(fd);
        access("/etc/nothing", R_OK);
        readlink("/etc/passwd", text, sizeof text);
        snprintf(path, sizeof path, "relative%d", i % 7);
        fstatat(AT_FDCWD, path, &status, AT_SYMLINK_NOFOLLOW);
    }
}

static void *thread(void *seed)
{
    work((long)seed);
    return NULL;
}

static void fork_one(long number, char **arguments)
{
    pthread_t threads[THREADS];
    if (chdir(number % 2 ? "/usr" : "/usr/lib"))
        _exit(4);
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, thread, (void *)(number * 10 + i));
    int directory = open("/etc", O_RDONLY | O_DIRECTORY);
    struct stat status;
    for (int i = 0; i < rounds; i++)
        fstatat(directory, i % 2 ? "passwd" : "absent", &status, 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    execl(arguments[2], arguments[2], arguments[1], NULL);
    _exit(3);
}

int main(int count, char **arguments)
{
    int failed = 0, status;
    rounds = count > 1 ? atoi(arguments[1]) : 1;
    if (count > 2) {
        for (long i = 0; i < FORKS; i++)
            if (!fork())
                fork_one(i, arguments);
        while (wait(&status) > 0)
            failed |= status;
    }
    work(99);
    if (chdir("/tmp"))
        return 4;
    work(98);
    return failed != 0;
}
