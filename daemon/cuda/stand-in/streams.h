// A GPU's streams: what was sent to them, when it runs, and how long it would take. README.md says what the environment
// decides of it.

#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

namespace stand_in {

class Streams;
struct Stream;

// What of a GPU does a piece of work, one after another.
enum class Engine { NONE, TO_DEVICE, TO_HOST, COMPUTE };
constexpr size_t ENGINES = 4;

// What a piece of work would take on a GPU.
struct Cost {
    Engine engine = Engine::NONE;
    uint64_t ns = 0;

    static Cost copy(Engine link, size_t bytes);
    // Bytes that are copied or set where they are.
    static Cost memory(size_t bytes);
    static Cost kernel(uint64_t blocks);
};

// A moment in a stream: it is over when all that was sent before is.
struct Moment {
    std::shared_ptr<Stream> stream;
    // How much was sent until then, itself among it.
    uint64_t after = 0;
    bool is_over = false;
    // By the simulated clock, and by the machine's.
    uint64_t ns = 0;
    std::chrono::steady_clock::time_point time{};
};

struct Work {
    Cost cost;
    std::function<void()> run;
    // It begins when this is over; whenever it likes without one.
    std::shared_ptr<Moment> waits_for;
    // By the simulated clock: when the host sent it.
    uint64_t sent_ns = 0;
};

struct Stream {
    std::deque<Work> work;
    uint64_t sent = 0, done = 0;
    // By the simulated clock: when the last of what is done ended.
    uint64_t free_ns = 0;

    bool can_go_on() const {
        return !work.empty() && (!work.front().waits_for || work.front().waits_for->is_over);
    }
};

// All of one GPU's.
class Streams {
  public:
    Streams();

    std::shared_ptr<Stream> create();
    void destroy(const std::shared_ptr<Stream> &stream);

    void send(Stream &stream, Cost cost, std::function<void()> run);
    void wait_for(Stream &stream, std::shared_ptr<Moment> moment);
    std::shared_ptr<Moment> record(const std::shared_ptr<Stream> &stream);

    // The host waits.
    void finish(Stream &stream);
    void finish(const Moment &moment);
    void finish_all();
    // The host asks. Whoever asks again and again comes to an end.
    bool is_over(const Moment &moment);

    // From one moment to the other, both over.
    float milliseconds(const Moment &from, const Moment &to) const;

  private:
    enum class Order { LAZY, EAGER, RANDOM, BY_TIME };

    void push(Stream &stream, Work work);
    void finish(Stream &stream, uint64_t until);
    void run_next(Stream &stream);
    // The stream that goes on next, when this one is waited for.
    Stream &choose(Stream &wanted);
    uint64_t start_ns(const Stream &stream) const;
    bool is_simulated() const { return order == Order::BY_TIME; }

    Order order;
    std::mt19937_64 random;
    // In the order in which they were made.
    std::vector<std::shared_ptr<Stream>> all;
    // By the simulated clock: when each engine is done with what it was given, and what the host has seen end.
    uint64_t free_ns[ENGINES] = {};
    uint64_t host_ns = 0;
};

} // namespace stand_in
