// slowfs: a FUSE pass-through that behaves like a busy shared file system, and counts what reaches it.
//
//     slowfs SOURCE MOUNT COUNTERS DELAY_US CONCURRENCY ENTRY_S NEGATIVE_S [FUSE OPTION ...]
//
// Each metadata request takes DELAY_US in the server, which works on CONCURRENCY of them at a time (0 = any number); others
// wait. Names that exist are remembered by the kernel for ENTRY_S, names that do not for NEGATIVE_S (0 = never), as clients of
// network file systems do. Reads and writes are counted and not delayed. SOURCE is opened before mounting, so MOUNT may be the
// same directory. COUNTERS is mapped memory (layout below, read by mount.py), so that counting costs no request.
// Closing a file is no metadata request here (NFSv4 has one; Lustre closes in the background).
#define FUSE_USE_VERSION 35
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum kind { STAT, ABSENT, OPEN, LIST, READLINK, CHANGE, KINDS };
#define BINS (36000 * 4) // four hours
#define BIN_US 100000

struct counters {
    _Atomic uint64_t ready, start_us, bin_us, bins; // start_us: CLOCK_MONOTONIC
    _Atomic uint64_t reads, read_bytes, writes, write_bytes;
    _Atomic uint64_t kinds[56];
    _Atomic uint64_t bin[BINS]; // metadata requests that arrived in each BIN_US since start_us
};

static int root, as_root;
static long delay_us;
static double entry_s, negative_s;
static sem_t places;
static int limited;
static struct counters *counters;

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void arrive(void) {
    uint64_t bin = (now_us() - counters->start_us) / BIN_US;
    counters->bin[bin < BINS ? bin : BINS - 1]++;
    if (delay_us) {
        struct timespec time = {delay_us / 1000000, delay_us % 1000000 * 1000};
        while (limited && sem_wait(&places) && errno == EINTR) {}
        nanosleep(&time, NULL);
        if (limited) sem_post(&places);
    }
}

static void request(enum kind kind) {
    counters->kinds[kind]++;
    arrive();
}

static const char *at(const char *path) { return path[1] ? path + 1 : "."; }
static int result(int value) { return value < 0 ? -errno : 0; }

// what root creates for others is theirs
static int own(const char *path, int value) {
    struct fuse_context *who = fuse_get_context();
    if (value >= 0 && as_root && who->uid) (void)!fchownat(root, at(path), who->uid, who->gid, AT_SYMLINK_NOFOLLOW);
    return value;
}

static int slow_getattr(const char *path, struct stat *info, struct fuse_file_info *file) {
    int value = file ? fstat(file->fh, info) : fstatat(root, at(path), info, AT_SYMLINK_NOFOLLOW);
    int failed = value < 0 ? -errno : 0;
    request(failed == -ENOENT ? ABSENT : STAT);
    return failed;
}

static int slow_readlink(const char *path, char *into, size_t size) {
    request(READLINK);
    ssize_t length = readlinkat(root, at(path), into, size - 1);
    if (length < 0) return -errno;
    into[length] = 0;
    return 0;
}

static int slow_open(const char *path, struct fuse_file_info *file) {
    request(OPEN);
    int fd = openat(root, at(path), (file->flags & ~O_NOFOLLOW) | O_CLOEXEC);
    if (fd < 0) return -errno;
    file->fh = fd;
    file->keep_cache = 1;
    return 0;
}

static int slow_create(const char *path, mode_t mode, struct fuse_file_info *file) {
    request(CHANGE);
    int fd = own(path, openat(root, at(path), file->flags | O_CLOEXEC, mode));
    if (fd < 0) return -errno;
    file->fh = fd;
    return 0;
}

static int slow_release(const char *path, struct fuse_file_info *file) {
    (void)path;
    return result(close(file->fh));
}

static int slow_read(const char *path, char *into, size_t size, off_t offset, struct fuse_file_info *file) {
    (void)path;
    ssize_t got = pread(file->fh, into, size, offset);
    counters->reads++;
    if (got > 0) counters->read_bytes += got;
    return got < 0 ? -errno : got;
}

static int slow_write(const char *path, const char *from, size_t size, off_t offset, struct fuse_file_info *file) {
    (void)path;
    ssize_t put = file->flags & O_APPEND ? write(file->fh, from, size) : pwrite(file->fh, from, size, offset);
    counters->writes++;
    if (put > 0) counters->write_bytes += put;
    return put < 0 ? -errno : put;
}

static int slow_fsync(const char *path, int data, struct fuse_file_info *file) {
    (void)path;
    return result(data ? fdatasync(file->fh) : fsync(file->fh));
}

static int slow_readdir(const char *path, void *into, fuse_fill_dir_t fill, off_t offset, struct fuse_file_info *file,
                        enum fuse_readdir_flags flags) {
    (void)offset, (void)file, (void)flags;
    request(LIST);
    int fd = openat(root, at(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    if (!directory) return -errno;
    for (struct dirent *entry; (entry = readdir(directory));) {
        struct stat info = {.st_ino = entry->d_ino, .st_mode = DTTOIF(entry->d_type)};
        fill(into, entry->d_name, &info, 0, 0);
    }
    closedir(directory);
    return 0;
}

static int slow_mkdir(const char *path, mode_t mode) {
    request(CHANGE);
    return result(own(path, mkdirat(root, at(path), mode)));
}
static int slow_mknod(const char *path, mode_t mode, dev_t device) {
    request(CHANGE);
    return result(own(path, mknodat(root, at(path), mode, device)));
}
static int slow_unlink(const char *path) {
    request(CHANGE);
    return result(unlinkat(root, at(path), 0));
}
static int slow_rmdir(const char *path) {
    request(CHANGE);
    return result(unlinkat(root, at(path), AT_REMOVEDIR));
}
static int slow_symlink(const char *target, const char *path) {
    request(CHANGE);
    return result(own(path, symlinkat(target, root, at(path))));
}
static int slow_rename(const char *from, const char *to, unsigned flags) {
    request(CHANGE);
    return result(renameat2(root, at(from), root, at(to), flags));
}
static int slow_link(const char *from, const char *to) {
    request(CHANGE);
    return result(linkat(root, at(from), root, at(to), 0));
}
static int slow_chmod(const char *path, mode_t mode, struct fuse_file_info *file) {
    request(CHANGE);
    return result(file ? fchmod(file->fh, mode) : fchmodat(root, at(path), mode, 0));
}
static int slow_chown(const char *path, uid_t user, gid_t group, struct fuse_file_info *file) {
    request(CHANGE);
    return result(file ? fchown(file->fh, user, group)
                       : fchownat(root, at(path), user, group, AT_SYMLINK_NOFOLLOW));
}
static int slow_utimens(const char *path, const struct timespec times[2], struct fuse_file_info *file) {
    request(CHANGE);
    return result(file ? futimens(file->fh, times) : utimensat(root, at(path), times, AT_SYMLINK_NOFOLLOW));
}
static int slow_truncate(const char *path, off_t size, struct fuse_file_info *file) {
    request(CHANGE);
    if (file) return result(ftruncate(file->fh, size));
    int fd = openat(root, at(path), O_WRONLY | O_CLOEXEC);
    int failed = fd < 0 ? -errno : result(ftruncate(fd, size));
    if (fd >= 0) close(fd);
    return failed;
}
static int slow_statfs(const char *path, struct statvfs *info) {
    (void)path;
    request(STAT);
    return result(fstatvfs(root, info));
}
static int slow_flock(const char *path, struct fuse_file_info *file, int operation) {
    (void)path;
    return result(flock(file->fh, operation));
}

static void *slow_init(struct fuse_conn_info *connection, struct fuse_config *config) {
    (void)connection;
    config->entry_timeout = config->attr_timeout = entry_s;
    config->negative_timeout = negative_s;
    config->use_ino = 1;
    config->nullpath_ok = 0;
    counters->ready = 1;
    return NULL;
}

static const struct fuse_operations operations = {
    .init = slow_init, .getattr = slow_getattr, .readlink = slow_readlink, .open = slow_open, .create = slow_create,
    .release = slow_release, .read = slow_read, .write = slow_write, .fsync = slow_fsync, .readdir = slow_readdir,
    .mkdir = slow_mkdir, .mknod = slow_mknod, .unlink = slow_unlink, .rmdir = slow_rmdir, .symlink = slow_symlink,
    .rename = slow_rename, .link = slow_link, .chmod = slow_chmod, .chown = slow_chown, .utimens = slow_utimens,
    .truncate = slow_truncate, .statfs = slow_statfs, .flock = slow_flock,
};

static void die(const char *what) {
    perror(what);
    exit(1);
}

int main(int count, char **words) {
    if (count < 8) {
        fprintf(stderr, "usage: slowfs SOURCE MOUNT COUNTERS DELAY_US CONCURRENCY ENTRY_S NEGATIVE_S [OPTION ...]\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGTERM); // it never outlives who started it
    as_root = geteuid() == 0;
    if ((root = open(words[1], O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0) die(words[1]);
    int fd = open(words[3], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || ftruncate(fd, sizeof *counters)) die(words[3]);
    counters = mmap(NULL, sizeof *counters, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (counters == MAP_FAILED) die("mmap");
    counters->start_us = now_us();
    counters->bin_us = BIN_US;
    counters->bins = BINS;
    delay_us = atol(words[4]);
    entry_s = atof(words[6]);
    negative_s = atof(words[7]);
    if ((limited = atoi(words[5]) > 0)) sem_init(&places, 0, atoi(words[5]));
    umask(0);
    char *fixed[] = {words[0], words[2], "-f", "-o", "fsname=slowfs,subtype=slowfs,max_threads=256,max_idle_threads=256"};
    int fixed_count = sizeof fixed / sizeof *fixed, total = fixed_count + count - 8;
    char **all = calloc(total + 1, sizeof *all);
    memcpy(all, fixed, sizeof fixed);
    memcpy(all + fixed_count, words + 8, (count - 8) * sizeof *words);
    return fuse_main(total, all, &operations, NULL);
}
