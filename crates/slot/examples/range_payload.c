/* A trivial payload of the range protocol: every event is done at once. With an argument, each event is reported
 * alone. Used to measure how fast a slot takes `done` lines: cc -O2 -o range_payload range_payload.c */
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    (void)argv;
    int single = argc > 1;
    FILE *in = fdopen(3, "r"), *out = fdopen(4, "w");
    static char out_buffer[1 << 16], line[256];
    if (!in || !out) return 2;
    setvbuf(out, out_buffer, _IOFBF, sizeof out_buffer);
    fputs("ready\nnext\nnext\n", out);
    fflush(out);
    while (fgets(line, sizeof line, in)) {
        unsigned long first, count, seed;
        if (!strcmp(line, "end\n")) return 0;
        if (sscanf(line, "range %lu %lu %lu", &first, &count, &seed) != 3) return 3;
        if (single)
            for (unsigned long event = first; event < first + count; event++) fprintf(out, "done %lu 1\n", event);
        else
            fprintf(out, "done %lu %lu\n", first, count);
        fputs("next\n", out);
        fflush(out);
    }
    return 1;
}
