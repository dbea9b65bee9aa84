/* The quickest payload that speaks the range protocol: asks for single events and reports each at once.
   Many requests are outstanding, and answers are written together when there is nothing more to read.
   With the argument `scattered` those of one reading are given backwards, every other one first: no two that follow
   each other are neighbours, so that their records cannot be joined. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OUTSTANDING = 256, INPUT_BYTES = 1 << 16, LINE_BYTES = 80 };

static char input[INPUT_BYTES], output[INPUT_BYTES * 2];
static size_t output_length;
static int out_fd;

static void send_all(void) {
    for (size_t sent = 0; sent < output_length;) {
        ssize_t n = write(out_fd, output + sent, output_length - sent);
        if (n < 0) exit(1);
        sent += (size_t)n;
    }
    output_length = 0;
}

static void say(const char *line) {
    if (output_length + LINE_BYTES > sizeof output) send_all();
    size_t length = strlen(line);
    memcpy(output + output_length, line, length);
    output_length += length;
}

static int fd_named(const char *variable) {
    const char *text = getenv(variable);
    if (!text) {
        fprintf(stderr, "%s is not set: start me as a payload in range mode\n", variable);
        exit(2);
    }
    return atoi(text);
}

static void answer(unsigned long long first) {
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "done %llu 1\nnext 1\n", first);
    say(line);
}

static void answer_scattered(const unsigned long long *given, size_t count) {
    for (size_t odd = 2; odd-- > 0;)
        for (size_t i = count; i-- > 0;)
            if (i % 2 == odd) answer(given[i]);
}

int main(int argc, char **argv) {
    static unsigned long long given[INPUT_BYTES];
    int scattered = argc > 1 && !strcmp(argv[1], "scattered");
    int in_fd = fd_named("TIDEMILL_IN");
    out_fd = fd_named("TIDEMILL_OUT");
    size_t held = 0;
    say("ready\n");
    for (int i = 0; i < OUTSTANDING; i++) say("next 1\n");
    for (;;) {
        send_all();
        ssize_t n = read(in_fd, input + held, sizeof input - held);
        if (n <= 0) return n < 0;
        held += (size_t)n;
        char *line = input, *end;
        size_t ranges = 0;
        while ((end = memchr(line, '\n', held - (size_t)(line - input)))) {
            unsigned long long first, count, seed;
            *end = 0;
            if (!strcmp(line, "end")) {
                answer_scattered(given, ranges);
                send_all();
                return 0;
            }
            if (sscanf(line, "range %llu %llu %llu", &first, &count, &seed) != 3 || count != 1) {
                fprintf(stderr, "not a line of the range protocol that I asked for: %s\n", line);
                return 2;
            }
            if (scattered) given[ranges++] = first;
            else answer(first);
            line = end + 1;
        }
        answer_scattered(given, ranges);
        held -= (size_t)(line - input);
        memmove(input, line, held);
    }
}
