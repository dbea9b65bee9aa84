// A range payload in C++: each event throws darts with its own seed; one text file per range.
// g++ -std=c++11 -O2 -o darts darts.cpp
#include <fstream>
#include <iostream>
#include <random>

#include "tidemill_ranges.hpp"

int main() try {
    // ... the slow set-up of a real program goes here, before the constructor says `ready` ...
    tidemill::Ranges ranges;
    tidemill::Range r;
    while (ranges.next(r)) {
        const std::string path = "hits-" + std::to_string(r.first) + ".txt";
        std::ofstream out(path);
        for (long long event = r.first; event < r.first + r.count; ++event) {
            std::mt19937_64 source(static_cast<std::uint64_t>(r.seed_of(event)));
            int hits = 0;
            for (int dart = 0; dart < 1000; ++dart) {
                const double x = static_cast<double>(source() >> 11) / 9007199254740992.0;
                const double y = static_cast<double>(source() >> 11) / 9007199254740992.0;
                hits += x * x + y * y < 1.0;
            }
            out << event << ' ' << r.seed_of(event) << ' ' << hits << '\n';
        }
        out.close();
        if (!out) throw std::runtime_error("failed to write " + path);
        ranges.done(r.first, r.count, {{"hits", path}});
    }
    return 0;
} catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
}
