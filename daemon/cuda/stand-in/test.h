// What the stand-in's own test programs share: `PROGRAM NAME` runs one test, and its exit status says whether what came
// out is right. Some tests do what must end the program.

#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (condition) break;                                                                                          \
        std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                                   \
        std::exit(1);                                                                                                  \
    } while (false)

struct Test {
    const char *name;
    void (*run)();
};
#define TEST(name) {#name, name}

template <size_t count> int run_test(const Test (&tests)[count], int argument_count, char **arguments) {
    for (const Test &test : tests) {
        if (argument_count != 2 || std::strcmp(test.name, arguments[1]) != 0) continue;
        test.run();
        return 0;
    }
    std::fprintf(stderr, "usage: %s TEST\n", arguments[0]);
    return 2;
}
