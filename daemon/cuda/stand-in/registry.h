// The kernels that the stand-in was compiled with, by name.

#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace stand_in {

struct Kernel {
    std::vector<size_t> parameter_bytes;
    // Copies the values, as a launch does, and gives what one thread does with them.
    std::function<std::function<void()>(void **values)> bind;
};

// None where there is no such kernel.
const Kernel *find_kernel(const std::string &name);

template <class... Parameters, size_t... i>
std::function<void()> thread_of(void (*function)(Parameters...), void **values, std::index_sequence<i...>) {
    std::tuple<Parameters...> copies;
    (std::memcpy(&std::get<i>(copies), values[i], sizeof(Parameters)), ...);
    return [=] { std::apply(function, copies); };
}

template <class... Parameters> Kernel make_kernel(void (*function)(Parameters...)) {
    return {{sizeof(Parameters)...},
            [=](void **values) { return thread_of(function, values, std::index_sequence_for<Parameters...>()); }};
}

} // namespace stand_in
