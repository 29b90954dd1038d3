// libnvidia-ml.so.1 on the CPU: what Sluice asks of NVIDIA's management library. Types and codes are those of nvml.h.
//
// STAND_IN_NVML=absent-figures: GPUs are found, and no figure of theirs is known.

#include "gpu.h"
#include "driver.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace {

using namespace stand_in;

enum Code { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

struct Memory {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct Process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};
struct Utilization {
    unsigned gpu, memory;
};

// A handle is a GPU's number, counted from 1.
void *handle_of(int ordinal) { return reinterpret_cast<void *>(uintptr_t(ordinal + 1)); }
int ordinal_of(void *handle) { return int(reinterpret_cast<uintptr_t>(handle)) - 1; }

std::string uuid_text(int ordinal) {
    unsigned char bytes[16];
    gpu::uuid(ordinal, bytes);
    std::string text = "GPU";
    char digits[3];
    for (int i = 0; i < 16; i++) {
        if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        std::snprintf(digits, sizeof digits, "%02x", bytes[i]);
        text += digits;
    }
    return text;
}

template <class Is> int find(void **handle, Is is) {
    for (int i = 0; i < gpu::count(); i++)
        if (is(i)) return *handle = handle_of(i), SUCCESS;
    return NOT_FOUND;
}

template <class T> int figure(T *to, T value) {
    const char *mode = std::getenv("STAND_IN_NVML");
    if (mode && std::strcmp(mode, "absent-figures") == 0) return NOT_SUPPORTED;
    return *to = value, SUCCESS;
}

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int nvmlInit_v2() { return SUCCESS; }

EXPORT int nvmlInitWithFlags(unsigned) { return SUCCESS; }

EXPORT int nvmlShutdown() { return SUCCESS; }

EXPORT const char *nvmlErrorString(int code) { return code == SUCCESS ? "Success" : "Failure"; }

EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned bytes) {
    return std::snprintf(text, bytes, "570.00"), SUCCESS;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count) { return *count = unsigned(gpu::count()), SUCCESS; }

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    return find(handle, [=](int i) { return unsigned(i) == index; });
}

// The domain may have four or eight digits.
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle) {
    std::string wanted = id;
    return find(handle, [&](int i) {
        std::string known = gpu::pci_bus_id(i);
        return wanted == known || wanted == "0000" + known;
    });
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    return find(handle, [=](int i) { return uuid_text(i) == uuid; });
}

EXPORT int nvmlDeviceGetUUID(void *handle, char *text, unsigned bytes) {
    return std::snprintf(text, bytes, "%s", uuid_text(ordinal_of(handle)).c_str()), SUCCESS;
}

EXPORT int nvmlDeviceGetName(void *, char *text, unsigned bytes) {
    return std::snprintf(text, bytes, "%s", gpu::NAME), SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory *memory) {
    if (memory->version != (2u << 24 | sizeof(Memory))) return INVALID_ARGUMENT;
    unsigned long long total = gpu::total_bytes();
    auto used = std::min<unsigned long long>(total, gpu::held_bytes() + used_bytes(ordinal_of(handle)));
    return figure(memory, {memory->version, total, 0, total - used, used});
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, Process *to) {
    std::vector<Process> processes;
    // All that others hold is held by one.
    if (gpu::held_bytes()) processes.push_back({1, gpu::held_bytes(), ~0u, ~0u});
    if (uint64_t used = used_bytes(ordinal_of(handle))) processes.push_back({unsigned(getpid()), used, ~0u, ~0u});
    unsigned room = *count;
    if (int code = figure(count, unsigned(processes.size()))) return code;
    if (room < processes.size()) return INSUFFICIENT_SIZE;
    std::copy(processes.begin(), processes.end(), to);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(void *, unsigned *count, Process *) { return figure(count, 0u); }

EXPORT int nvmlDeviceGetUtilizationRates(void *, Utilization *rates) { return figure(rates, {37, 21}); }

// Of the processors and of the memory.
EXPORT int nvmlDeviceGetClockInfo(void *, int which, unsigned *mhz) { return figure(mhz, which == 2 ? 5000u : 1500u); }

EXPORT int nvmlDeviceGetTemperature(void *, int, unsigned *celsius) { return figure(celsius, 56u); }

EXPORT int nvmlDeviceGetPowerUsage(void *, unsigned *milliwatts) { return figure(milliwatts, 60500u); }

EXPORT int nvmlDeviceGetEnforcedPowerLimit(void *, unsigned *milliwatts) { return figure(milliwatts, 115000u); }

EXPORT int nvmlDeviceGetCurrPcieLinkGeneration(void *, unsigned *generation) { return figure(generation, 3u); }

EXPORT int nvmlDeviceGetMaxPcieLinkGeneration(void *, unsigned *generation) { return figure(generation, 4u); }

EXPORT int nvmlDeviceGetCurrPcieLinkWidth(void *, unsigned *lanes) { return figure(lanes, 8u); }

EXPORT int nvmlDeviceGetMaxPcieLinkWidth(void *, unsigned *lanes) { return figure(lanes, 8u); }
