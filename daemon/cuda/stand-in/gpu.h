// The GPU that the stand-in's libraries show, and what the environment makes of it; see README.md.

#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace stand_in {

inline uint64_t setting(const char *name, uint64_t otherwise) {
    const char *text = std::getenv(name);
    return text && *text ? std::strtoull(text, nullptr, 0) : otherwise;
}

namespace gpu {

constexpr const char *NAME = "Stand-in (CPU)";
// What a context takes of the GPU's memory.
constexpr uint64_t CONTEXT_BYTES = 128ull << 20;

// In the machine, whatever the process may see of them.
inline int count() { return int(setting("STAND_IN_DEVICES", 1)); }
inline uint64_t total_bytes() { return setting("STAND_IN_MEMORY", 4ull << 30); }
// By other programs, which come and go.
inline uint64_t held_bytes() {
    uint64_t bytes = setting("STAND_IN_HELD", 0);
    const char *path = std::getenv("STAND_IN_HELD_FILE");
    std::FILE *file = path ? std::fopen(path, "r") : nullptr;
    unsigned long long more = 0;
    if (file && std::fscanf(file, "%llu", &more) == 1) bytes += more;
    if (file) std::fclose(file);
    return bytes;
}
// CUDA's version that the driver knows: 1000 a major, 10 a minor one.
inline int driver_version() { return int(setting("STAND_IN_DRIVER_VERSION", 12080)); }

struct Capability {
    int major = 8, minor = 6;
};
// Of the GPU with this number in the machine; most have the same.
inline Capability capability(int ordinal = -1) {
    Capability capability;
    if (ordinal >= 0 && setting("STAND_IN_OLD_GPU", UINT64_MAX) == uint64_t(ordinal)) return {7, 0};
    if (const char *text = std::getenv("STAND_IN_CAPABILITY"))
        std::sscanf(text, "%d.%d", &capability.major, &capability.minor);
    return capability;
}

inline void uuid(int ordinal, unsigned char to[16]) {
    for (int i = 0; i < 16; i++) to[i] = (unsigned char)(0x51 + 11 * i);
    to[15] = (unsigned char)ordinal;
}
inline std::string pci_bus_id(int ordinal) {
    char text[16];
    std::snprintf(text, sizeof text, "0000:%02X:00.0", unsigned(ordinal + 1) & 0xff);
    return text;
}

} // namespace gpu
} // namespace stand_in
