// See ptx.h.

#include "ptx.h"

#include <cctype>
#include <cstdio>
#include <cstdlib>

namespace stand_in {
namespace {

// The line that `at` lies in, from there on.
std::string rest_of_line(const std::string &text, size_t at) { return text.substr(at, text.find('\n', at) - at); }

std::string word(const std::string &text, size_t at) {
    size_t end = at;
    while (end < text.size() && (std::isalnum((unsigned char)text[end]) || text[end] == '_' || text[end] == '$')) end++;
    return text.substr(at, end - at);
}

struct Variable {
    std::string name;
    size_t bytes;
};

// Of a declaration such as `.param .align 8 .b8 name[184]` or `.param .u64 name`, after its first word.
Variable variable(const std::string &declaration) {
    static const std::map<std::string, size_t> types = {{"u8", 1},  {"s8", 1},  {"b8", 1},  {"u16", 2}, {"s16", 2},
                                                        {"b16", 2}, {"f16", 2}, {"u32", 4}, {"s32", 4}, {"b32", 4},
                                                        {"f32", 4}, {"u64", 8}, {"s64", 8}, {"b64", 8}, {"f64", 8}};
    size_t bytes = 0, end = declaration.find_first_of(",;)");
    std::string text = declaration.substr(0, end);
    for (size_t dot = text.find('.'); dot != std::string::npos; dot = text.find('.', dot + 1)) {
        auto type = types.find(word(text, dot + 1));
        if (type != types.end()) bytes = type->second;
    }
    size_t bracket = text.find('['), name_end = text.find_last_not_of(" \t\r", bracket - 1);
    size_t name_start = text.find_last_of(" \t", name_end) + 1;
    if (bracket != std::string::npos) bytes *= std::strtoull(text.c_str() + bracket + 1, nullptr, 10);
    return {text.substr(name_start, name_end + 1 - name_start), bytes};
}

template <class Each> void each(const std::string &text, const std::string &directive, Each each_found) {
    for (size_t at = text.find(directive); at != std::string::npos; at = text.find(directive, at + 1))
        each_found(at + directive.size());
}

bool mentions(const std::string &text, const std::string &name) {
    for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1))
        if (word(text, at) == name) return true;
    return false;
}

} // namespace

Ptx Ptx::read(const std::string &text) {
    Ptx ptx;
    unsigned major, minor;
    size_t version = text.find(".version "), target = text.find(".target sm_");
    if (version == std::string::npos || target == std::string::npos ||
        std::sscanf(text.c_str() + version, ".version %u.%u", &major, &minor) != 2)
        return ptx;
    ptx.version = major * 10 + minor;
    ptx.target = unsigned(std::atoi(text.c_str() + target + 11));

    // Shared variables stand in the kernel, or before all of them when several use them.
    std::vector<Variable> shared;
    each(text, ".shared .", [&](size_t at) { shared.push_back(variable(rest_of_line(text, at - 1))); });

    each(text, ".entry ", [&](size_t at) {
        Kernel &kernel = ptx.kernels[word(text, at)];
        std::string body = text.substr(at, text.find(".entry ", at) - at);
        std::string head = body.substr(0, body.find('{'));
        each(head, ".param ", [&](size_t parameter) {
            kernel.parameter_bytes.push_back(variable(head.substr(parameter)).bytes);
        });
        unsigned x = 0, y = 1, z = 1;
        size_t bound = head.find(".maxntid ");
        if (bound != std::string::npos) std::sscanf(head.c_str() + bound, ".maxntid %u, %u, %u", &x, &y, &z);
        kernel.threads_max = x * y * z;
        for (const Variable &variable : shared)
            if (mentions(body, variable.name)) kernel.static_shared_bytes += variable.bytes;
    });
    return ptx;
}

} // namespace stand_in
