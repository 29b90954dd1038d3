#include "streams.h"

#include "gpu.h"
#include "cuda_on_cpu.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace stand_in {

// ---------------------------------------------------------------------------------------------- what work costs

namespace {

// What the link and the host add to each copy, and the host to each question.
constexpr uint64_t COPY_NS = 5000, QUESTION_NS = 1000;
// Blocks of a grid that run at once.
constexpr uint64_t BLOCKS_AT_ONCE = 32;

uint64_t at_rate(size_t bytes, uint64_t bytes_per_s) { return uint64_t(double(bytes) / double(bytes_per_s) * 1e9); }

} // namespace

Cost Cost::copy(Engine link, size_t bytes) {
    return {link, COPY_NS + at_rate(bytes, setting("STAND_IN_LINK_BYTES_PER_S", 12'000'000'000))};
}

Cost Cost::memory(size_t bytes) {
    return {Engine::COMPUTE, COPY_NS + at_rate(bytes, setting("STAND_IN_MEMORY_BYTES_PER_S", 300'000'000'000))};
}

Cost Cost::kernel(uint64_t blocks) {
    uint64_t rounds = (blocks + BLOCKS_AT_ONCE - 1) / BLOCKS_AT_ONCE;
    return {Engine::COMPUTE, rounds * setting("STAND_IN_KERNEL_NS", 2000)};
}

// ---------------------------------------------------------------------------------------------- sending

Streams::Streams() : order(Order::LAZY) {
    const char *clock = std::getenv("STAND_IN_CLOCK"), *streams = std::getenv("STAND_IN_STREAMS");
    if (streams && std::strcmp(streams, "eager") == 0) {
        order = Order::EAGER;
    } else if (streams && std::strncmp(streams, "random:", 7) == 0) {
        order = Order::RANDOM;
        random.seed(std::strtoull(streams + 7, nullptr, 0));
    } else if (streams && *streams && std::strcmp(streams, "lazy") != 0) {
        stop("STAND_IN_STREAMS is lazy, eager or random:SEED, not %s", streams);
    }
    if (clock && std::strcmp(clock, "simulated") == 0) {
        if (order != Order::LAZY) stop("a simulated clock takes work in an order of its own, not %s", streams);
        order = Order::BY_TIME;
    }
}

std::shared_ptr<Stream> Streams::create() { return all.emplace_back(std::make_shared<Stream>()); }

void Streams::destroy(const std::shared_ptr<Stream> &stream) {
    finish(*stream);
    all.erase(std::remove(all.begin(), all.end(), stream), all.end());
}

void Streams::send(Stream &stream, Cost cost, std::function<void()> run) {
    push(stream, {cost, std::move(run), nullptr});
}

void Streams::wait_for(Stream &stream, std::shared_ptr<Moment> moment) {
    push(stream, {{}, [] {}, std::move(moment)});
}

std::shared_ptr<Moment> Streams::record(const std::shared_ptr<Stream> &stream) {
    auto moment = std::make_shared<Moment>();
    moment->stream = stream;
    moment->after = stream->sent + 1;
    // The stream lives for as long as it has work, so that this may name it.
    auto pass = [moment, at = stream.get()] {
        moment->is_over = true;
        moment->ns = at->free_ns;
        moment->time = std::chrono::steady_clock::now();
    };
    push(*stream, {{}, pass, nullptr});
    return moment;
}

void Streams::push(Stream &stream, Work work) {
    work.sent_ns = host_ns;
    stream.work.push_back(std::move(work));
    stream.sent++;
    // All that it could wait for has run when it was sent.
    if (order == Order::EAGER) run_next(stream);
}

// ---------------------------------------------------------------------------------------------- running

uint64_t Streams::start_ns(const Stream &stream) const {
    const Work &next = stream.work.front();
    uint64_t ns = std::max(stream.free_ns, next.sent_ns);
    if (next.waits_for) ns = std::max(ns, next.waits_for->ns);
    if (next.cost.engine != Engine::NONE) ns = std::max(ns, free_ns[size_t(next.cost.engine)]);
    return ns;
}

void Streams::run_next(Stream &stream) {
    uint64_t end_ns = start_ns(stream) + stream.work.front().cost.ns;
    Work next = std::move(stream.work.front());
    stream.work.pop_front();
    stream.free_ns = end_ns;
    if (next.cost.engine != Engine::NONE) free_ns[size_t(next.cost.engine)] = end_ns;
    next.run();
    stream.done++;
}

Stream &Streams::choose(Stream &wanted) {
    if (order == Order::LAZY || order == Order::EAGER) {
        Stream *next = &wanted;
        while (!next->can_go_on()) next = next->work.front().waits_for->stream.get();
        return *next;
    }
    std::vector<Stream *> able;
    for (auto &stream : all)
        if (stream->can_go_on()) able.push_back(stream.get());
    if (order == Order::RANDOM) return *able[random() % able.size()];
    auto earlier = [&](Stream *a, Stream *b) { return start_ns(*a) < start_ns(*b); };
    return **std::min_element(able.begin(), able.end(), earlier);
}

void Streams::finish(Stream &stream, uint64_t until) {
    while (stream.done < until) run_next(choose(stream));
}

void Streams::finish(Stream &stream) {
    finish(stream, stream.sent);
    host_ns = std::max(host_ns, stream.free_ns);
}

void Streams::finish(const Moment &moment) {
    finish(*moment.stream, moment.after);
    host_ns = std::max(host_ns, moment.ns);
}

void Streams::finish_all() {
    for (auto &stream : all) finish(*stream);
}

bool Streams::is_over(const Moment &moment) {
    if (!is_simulated()) {
        if (!moment.is_over) run_next(choose(*moment.stream));
        return moment.is_over;
    }
    // The host's clock goes on, and with it what begins until then.
    host_ns += QUESTION_NS;
    while (!moment.is_over) {
        Stream &next = choose(*moment.stream);
        if (start_ns(next) > host_ns) return false;
        run_next(next);
    }
    return moment.ns <= host_ns;
}

float Streams::milliseconds(const Moment &from, const Moment &to) const {
    if (is_simulated()) return float((double(to.ns) - double(from.ns)) / 1e6);
    return std::chrono::duration<float, std::milli>(to.time - from.time).count();
}

} // namespace stand_in
