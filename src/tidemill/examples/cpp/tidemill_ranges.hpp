// The range protocol for C++11 payloads, in one header: copy it into your program. See docs/range-protocol.md.
//
//     tidemill::Ranges ranges;              // after your set-up: says `ready`
//     tidemill::Range r;
//     while (ranges.next(r)) {
//         for (long long event = r.first; event < r.first + r.count; ++event) work(event, r.seed_of(event));
//         ranges.done(r.first, r.count, {{"hits", path}});
//     }
//
// Write each range's output to a new file name: after `done` the file belongs to the pilot.
#ifndef TIDEMILL_RANGES_HPP
#define TIDEMILL_RANGES_HPP

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>

#include <unistd.h>

namespace tidemill {

struct Range {
    long long first = 0;
    long long count = 0;
    long long seed = 0;  // of the first event
    long long seed_of(long long event) const { return seed + (event - first); }
};

class Ranges {
public:
    // `prefetch`: ranges asked for and not yet taken. At most `size_max` events each; 0 = the pilot chooses.
    explicit Ranges(int prefetch = 2, long long size_max = 0)
        : in_(fd_from("TIDEMILL_IN", 3)), out_(fd_from("TIDEMILL_OUT", 4)),
          ask_(size_max > 0 ? "next " + std::to_string(size_max) + "\n" : "next\n") {
        std::signal(SIGPIPE, SIG_IGN);  // a pilot that is gone is an exception, not a silent death
        std::string text = "ready\n";
        for (int k = 1; k < prefetch; ++k) text += ask_;
        send(text);
    }

    // Take the next range; false = no more: return from main with 0. Throws std::runtime_error.
    bool next(Range& range) {
        send(ask_);
        const std::string line = read_line();
        if (line == "end") return false;
        char rest = 0;
        if (std::sscanf(line.c_str(), "range %lld %lld %lld%c", &range.first, &range.count, &range.seed, &rest) != 3)
            throw std::runtime_error("expected `range FIRST COUNT SEED` or `end` from the pilot, got `" + line + "`");
        return true;
    }

    // These events are done; `outputs`: name -> file below the work directory, relative to it.
    void done(long long first, long long count, const std::map<std::string, std::string>& outputs = {}) {
        std::string line = "done " + std::to_string(first) + " " + std::to_string(count);
        for (const auto& output : outputs) line += " " + output.first + "=" + encode(output.second);
        send(line + "\n");
    }

    // This event failed; report the events around it with `done` in pieces.
    void failed(long long event, const std::string& message) {
        send("failed " + std::to_string(event) + " " + one_line(message) + "\n");
    }

    void log(const std::string& message) { send("log " + one_line(message) + "\n"); }

    // I compute for long, but I am alive.
    void beat() { send("beat\n"); }

private:
    static int fd_from(const char* name, int otherwise) {
        const char* text = std::getenv(name);
        return text ? std::atoi(text) : otherwise;
    }

    static std::string encode(const std::string& path) {
        std::string encoded;
        char hex[4];
        for (unsigned char byte : path) {
            if (byte > 0x20 && byte < 0x7f && byte != '%') {
                encoded += static_cast<char>(byte);
            } else {
                std::snprintf(hex, sizeof hex, "%%%02X", static_cast<unsigned>(byte));
                encoded += hex;
            }
        }
        return encoded;
    }

    static std::string one_line(std::string message) {
        for (char& byte : message)
            if (byte == '\n' || byte == '\r') byte = ' ';
        return message.substr(0, 4000);
    }

    void send(const std::string& text) {
        std::size_t sent = 0;
        while (sent < text.size()) {
            const ssize_t written = ::write(out_, text.data() + sent, text.size() - sent);
            if (written < 0 && errno == EINTR) continue;
            if (written < 0) throw std::runtime_error(std::string("failed to write to the pilot: ") + std::strerror(errno));
            sent += static_cast<std::size_t>(written);
        }
    }

    std::string read_line() {
        for (;;) {
            const std::size_t end = buffer_.find('\n');
            if (end != std::string::npos) {
                const std::string line = buffer_.substr(0, end);
                buffer_.erase(0, end + 1);
                return line;
            }
            char chunk[4096];
            const ssize_t got = ::read(in_, chunk, sizeof chunk);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) throw std::runtime_error(std::string("failed to read from the pilot: ") + std::strerror(errno));
            if (got == 0) throw std::runtime_error("the pilot closed the protocol without `end`");
            buffer_.append(chunk, static_cast<std::size_t>(got));
        }
    }

    int in_;
    int out_;
    std::string ask_;
    std::string buffer_;
};

}  // namespace tidemill

#endif
