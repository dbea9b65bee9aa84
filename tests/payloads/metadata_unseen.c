/* Operations that a tracer of system calls does not see, or only seems not to see.
 *
 *     metadata_unseen probe      asks for io_uring in ways that fail, as libraries do to learn whether there is one
 *     metadata_unseen ring       makes a ring of io_uring; ends with status 77 where the kernel has none for us
 *     metadata_unseen foreign    opens ten files by `int $0x80`, whose numbers are those of i386
 *     metadata_unseen plain      ten calls whose numbers are calls of i386, too: creat, access, openat2
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { RING_SETUP = 425, RING_ENTER = 426, OPENAT2 = 437 };

static int probe(void)
{
    char parameters[120] = {0};
    if (syscall(RING_SETUP, 0, parameters) >= 0) /* a ring of no entries */
        return 1;
    if (syscall(RING_SETUP, 8, (void *)8) >= 0) /* no parameters */
        return 1;
    return syscall(RING_ENTER, -1, 1, 0, 0, 0, 0) >= 0;
}

static int ring(void)
{
    char parameters[120] = {0};
    return syscall(RING_SETUP, 8, parameters) >= 0 ? 0 : 77;
}

static int foreign(void)
{
#ifdef __x86_64__
    /* an address of 32 bits */
    char *name = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    if (name == MAP_FAILED)
        return 1;
    strcpy(name, "/no/such/name");
    for (int i = 0; i < 10; i++) {
        long result;
        __asm__ volatile("int $0x80" : "=a"(result) : "a"(5L), "b"(name), "c"(0L), "d"(0L) : "memory", "r8", "r9", "r10", "r11");
        if (result != -ENOENT)
            return 77; /* a kernel without these calls */
    }
    return 0;
#else
    return 77;
#endif
}

static int plain(void)
{
    long how[3] = {0};
    for (int i = 0; i < 10; i++) {
        syscall(SYS_openat, AT_FDCWD, "/no/such/name", O_RDONLY);
        syscall(OPENAT2, AT_FDCWD, "/no/such/name", how, sizeof how);
#ifdef SYS_creat
        syscall(SYS_creat, "/no/such/name", 0600);
#endif
    }
    return 0;
}

int main(int count, char **words)
{
    const char *mode = count > 1 ? words[1] : "";
    if (!strcmp(mode, "probe"))
        return probe();
    if (!strcmp(mode, "ring"))
        return ring();
    if (!strcmp(mode, "foreign"))
        return foreign();
    return strcmp(mode, "plain") ? 2 : plain();
}
