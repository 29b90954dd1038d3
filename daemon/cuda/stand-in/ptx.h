// What the stand-in reads of PTX, as nvcc writes it: enough to tell that a module is of the same sources as the kernels
// that are run in its place.

#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace stand_in {

struct Ptx {
    struct Kernel {
        std::vector<size_t> parameter_bytes;
        // `__launch_bounds__`, or none.
        unsigned threads_max = 0;
        size_t static_shared_bytes = 0;
    };

    // 74 is 7.4.
    unsigned version = 0;
    // 80 is sm_80.
    unsigned target = 0;
    std::map<std::string, Kernel> kernels;

    // Version 0 when it is no PTX.
    static Ptx read(const std::string &text);
};

} // namespace stand_in
