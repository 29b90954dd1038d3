// A GPU's memory, which is the host's at addresses of its own.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

namespace stand_in {

// Where no system puts memory of its own accord. None of it is used twice.
constexpr uintptr_t FIRST_ADDRESS = uintptr_t(0x2000) << 32;

// One allocation: pages with a page on either side that can't be touched. It ends where its pages end, but for what
// alignment takes.
class DeviceMemory {
  public:
    explicit DeviceMemory(size_t bytes);
    DeviceMemory(const DeviceMemory &) = delete;
    ~DeviceMemory();

    uint64_t address() const { return reinterpret_cast<uint64_t>(start); }

    const size_t bytes;

  private:
    void *mapped;
    size_t mapped_bytes;
    unsigned char *first, *start, *last;
};

// Memory without an address; it counts in `used` for as long as anybody holds it.
struct Physical {
    Physical(size_t bytes, uint64_t &used) : bytes(bytes), used(used) { used += bytes; }
    Physical(const Physical &) = delete;
    ~Physical() { used -= bytes; }

    const size_t bytes;
    bool is_mapped = false;

  private:
    uint64_t &used;
};

// Addresses that are set aside, with memory behind some of them. What is not mapped, or not made accessible, can't be
// touched.
class AddressRange {
  public:
    explicit AddressRange(size_t bytes);
    AddressRange(const AddressRange &) = delete;
    ~AddressRange();

    uint64_t address() const { return reinterpret_cast<uint64_t>(start); }
    bool is_empty() const { return mappings.empty(); }

    // False for what lies outside or is mapped already.
    bool map(uint64_t at, std::shared_ptr<Physical> memory);
    // False unless it is one mapping, or several, from end to end.
    bool unmap(uint64_t at, size_t bytes);
    // The same of what may be touched from now on, which is poison at first.
    bool make_accessible(uint64_t at, size_t bytes);

    bool holds(uint64_t at, size_t bytes) const;

    const size_t bytes;

  private:
    struct Mapping {
        std::shared_ptr<Physical> memory;
        bool is_accessible = false;
    };
    using Mappings = std::map<uint64_t, Mapping>;

    // Calls `each` with the mappings that cover these bytes; false where one is missing or stands out.
    template <class Each> bool cover(uint64_t at, size_t bytes, Each each);

    unsigned char *start;
    Mappings mappings;
};

} // namespace stand_in
