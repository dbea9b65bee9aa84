/* Programs that are hard to trace. Each prints how many operations it did on the path /no/such/name.
 *
 *     metadata_trouble MODE
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static long *done; /* shared with forked children */
static volatile int handled;

static void one(void)
{
    struct stat status;
    stat("/no/such/name", &status);
    __atomic_add_fetch(done, 1, __ATOMIC_SEQ_CST);
}

static void some(int count)
{
    for (int i = 0; i < count; i++)
        one();
}

static void on_alarm(int signal)
{
    (void)signal;
    handled++;
    some(3);
}

/* handlers that make calls of their own, at any moment of the interrupted ones */
static void signals(void)
{
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval timer = {{0, 300}, {0, 300}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
    for (int i = 0; i < 20000 && handled < 400; i++)
        one();
    memset(&timer, 0, sizeof timer);
    setitimer(ITIMER_REAL, &timer, NULL);
}

static void stops(void)
{
    pid_t child = fork();
    if (!child) {
        for (int i = 0; i < 20; i++) {
            some(30);
            raise(SIGSTOP);
        }
        _exit(0);
    }
    int status;
    while (waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status)) {
        some(5);
        kill(child, SIGCONT);
    }
}

static void traces_itself(void)
{
    pid_t child = fork();
    if (!child) {
        some(20);
        if (ptrace(PTRACE_TRACEME, 0, 0, 0) == 0)
            raise(SIGTRAP); /* bare, this stops it */
        some(20);
        _exit(0);
    }
    int status;
    while (waitpid(child, &status, 0) == child && WIFSTOPPED(status))
        ptrace(PTRACE_CONT, child, 0, 0);
}

static void *execute(void *name)
{
    some(40);
    execl(name, name, "print", NULL);
    _exit(3);
}

static void *loop(void *unused)
{
    (void)unused;
    for (;;)
        pause();
}

/* exec by a thread that is not the first one ends all others */
static void thread_execs(char *name)
{
    pthread_t threads[4];
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, loop, NULL);
    some(50);
    pthread_create(&threads[3], NULL, execute, name);
    pthread_join(threads[3], NULL);
}

/* killed while they are busy: nobody knows how far they got */
static void kills(void)
{
    for (int i = 0; i < 30; i++) {
        pid_t child = fork();
        if (!child)
            for (;;)
                one();
        usleep(3000);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
}

static int vfork_many(void)
{
    for (int i = 0; i < 50; i++) {
        some(20);
        pid_t child = vfork();
        if (!child) {
            execl("/bin/true", "true", NULL);
            _exit(1);
        }
        some(5);
        waitpid(child, NULL, 0);
    }
    return 0;
}

static void *locked_directory(void *unused)
{
    (void)unused;
    for (int i = 0; i < 300; i++)
        one();
    return NULL;
}

/* more threads than there are places for results */
static void many_threads(void)
{
    pthread_t threads[300];
    for (int i = 0; i < 300; i++)
        pthread_create(&threads[i], NULL, locked_directory, NULL);
    for (int i = 0; i < 300; i++)
        pthread_join(threads[i], NULL);
}

int main(int count, char **arguments)
{
    const char *mode = count > 1 ? arguments[1] : "";
    done = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!strcmp(mode, "signals"))
        signals();
    else if (!strcmp(mode, "stops"))
        stops();
    else if (!strcmp(mode, "traces"))
        traces_itself();
    else if (!strcmp(mode, "execs"))
        thread_execs(arguments[0]);
    else if (!strcmp(mode, "kills"))
        kills();
    else if (!strcmp(mode, "vforks"))
        vfork_many();
    else if (!strcmp(mode, "threads"))
        many_threads();
    else if (!strcmp(mode, "print")) /* what was executed: 90 before it, 10 now */
        some(10), *done += 90;
    else
        return 2;
    printf("%ld\n", *done);
    return 0;
}
