// SPDX-License-Identifier: MIT
// On one thread a token is appended without an allocation, a lock or a system call, whatever the cache.
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <mutex>
#include <shared_mutex>

#include "alloc/counted_allocations.hpp"
#include "bitwise/running_layer.hpp"

#if COUNTS_MALLOC
// The C library's locks, counted: std::mutex and its kin come through here.
namespace {
std::atomic<long> locks{0};

template <class Lock>
int counted_lock(Lock* lock, const char* name) {
  ++locks;
  return reinterpret_cast<int (*)(Lock*)>(dlsym(RTLD_NEXT, name))(lock);
}
}  // namespace

extern "C" {
int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  return counted_lock(mutex, "pthread_mutex_lock");
}
int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  return counted_lock(mutex, "pthread_mutex_trylock");
}
int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  return counted_lock(lock, "pthread_rwlock_rdlock");
}
int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  return counted_lock(lock, "pthread_rwlock_wrlock");
}
}
#endif

namespace gated_attention::test {
namespace {

constexpr Shape small{.model_dim = 64, .query_heads = 4, .kv_heads = 4, .head_dim = 16};

/// All extents static and small, a window of 64.
auto small_layer() {
  return RunningLayer(compose<float>(Static<small>{}, QkNorm<>{.eps = 1e-6}, Rope<>{.theta = 1e4},
                                     SlidingWindow{.window = 64}, Gate<at::Sdpa>{}));
}

/// Tokens one by one on one thread, and what they are to give.
template <class Running>
struct Decoding {
  static constexpr Index tokens = 400;

  const Running& running;
  std::vector<float> x = running.input(tokens), wanted = running.forward(x),
                     y = std::vector<float>(x.size());
  Workspace<typename Running::Layer> workspace{running.layer, {.tokens = 1, .threads = 1}};

  explicit Decoding(const Running& of) : running(of) {}

  template <class Cache>
  void run(Cache& cache) {
    const Index dim = running.model_dim();
    for (Index t = 0; t < tokens; ++t)
      running.layer.extend({.x = {x.data() + t * dim, 1, dim}}, running.weights, cache, workspace,
                           {y.data() + t * dim, 1, dim});
  }

  bool is_right() const {
    return std::memcmp(y.data(), wanted.data(), y.size() * sizeof(float)) == 0;
  }
};

/// function(cache) for every kind of cache, fresh.
template <class Layer, class Function>
void with_every_cache(const Layer& layer, const Function& function) {
  const auto with = [&](auto cache, const char* name) {
    SCOPED_TRACE(name);
    function(cache);
  };
  with(ContiguousCache(layer, {.tokens = 400}), "contiguous");
  with(PagedCache(layer, {.pages = 7}), "pages");
  with(RingCache(layer, {}), "ring");
  with(RingCache(layer, {}, stored_as<bfloat16>), "ring of bfloat16");
  with(RingCache(layer, {}, stored_as<half>), "ring of half");
  with(RingCache(layer, {}, stored_as<std::int8_t>), "ring of int8");
}

template <class Cache>
inline constexpr bool stores_scalar =
    std::is_same_v<typename Cache::Stored, typename Cache::Scalar>;

TEST(Allocation, NoneInExtendOfOneToken) {
  const auto running = small_layer();
  with_every_cache(running.layer, [&](auto& cache) {
    Decoding decoding(running);
    EXPECT_EQ(allocations_of([&] { decoding.run(cache); }), 0);
    if (stores_scalar<std::remove_cvref_t<decltype(cache)>>) {
      EXPECT_TRUE(decoding.is_right());
    }
  });
}

TEST(Allocation, NoneInExtendOfRaggedChunks) {
  const auto running = RunningLayer(
      compose<double>({.model_dim = 40, .query_heads = 6, .kv_heads = 2, .head_dim = 10},
                      LearnedSink{}, Softcap{.cap = 20}, Rope<>{.theta = 1e4},
                      StreamingWindow{.kept = 3, .window = 50, .positions = KeyPositions::in_cache},
                      Gate<at::Sdpa>{}));
  const Index tokens = 301, dim = 40;
  const auto x = running.input(tokens);
  std::vector<double> y(x.size()), log_sum_exp(static_cast<std::size_t>(tokens * 6));
  const std::vector<Index> lengths = {300, 0, 1};
  Workspace workspace(running.layer, {.tokens = tokens, .sequences = 3, .threads = 1});
  const auto expect_none = [&](auto cache) {
    EXPECT_EQ(allocations_of([&] {
                for (int i = 0; i < 2; ++i)
                  running.layer.extend({.x = {x.data(), tokens, dim}, .lengths = lengths},
                                       running.weights, cache, workspace, {y.data(), tokens, dim},
                                       {.log_sum_exp = {log_sum_exp.data(), tokens, 6}});
              }),
              0);
    EXPECT_EQ(cache.size(0), 600);
    EXPECT_EQ(allocations_of([&] {
                cache.truncate(0, 590);
                cache.reset();
              }),
              0);
  };
  expect_none(ContiguousCache(running.layer, {.tokens = 600, .sequences = 3}));
  expect_none(RingCache(running.layer, {.sequences = 3}, stored_as<float>));
  PagedCache paged(running.layer, {.pages = 15, .sequences = 3});
  EXPECT_EQ(allocations_of([&] {
              running.layer.extend({.x = {x.data(), tokens, dim}, .lengths = lengths},
                                   running.weights, paged, workspace, {y.data(), tokens, dim});
              paged.fork(0, 1, 290);
              running.layer.extend({.x = {x.data(), tokens, dim}, .lengths = lengths},
                                   running.weights, paged, workspace, {y.data(), tokens, dim});
            }),
            0)
      << "with a fork, and the copy of its page";
}

#if COUNTS_MALLOC
/// Locks that a call takes.
template <class Function>
long locks_of(const Function& function) {
  const long before = locks;
  function();
  return locks - before;
}

TEST(Lock, IsCounted) {
  std::mutex mutex;
  std::shared_mutex shared;
  EXPECT_EQ(locks_of([&] {
              const std::lock_guard one(mutex);
              const std::shared_lock two(shared);
            }),
            2);
}

TEST(Lock, NoneInExtendOfOneToken) {
  const auto running = small_layer();
  with_every_cache(running.layer, [&](auto& cache) {
    Decoding decoding(running);
    EXPECT_EQ(locks_of([&] { decoding.run(cache); }), 0);
  });
}

enum class Outcome { done, wrong, killed, not_available };

/// function() in a process that is killed by its first system call but exit.
template <class Function>
Outcome without_system_calls(const Function& function) {
  constexpr int wrong = 1, not_available = 77;
  const pid_t child = fork();
  if (child == 0) {
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    const sock_fprog program{std::size(filter), filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
      _exit(not_available);
    _exit(function() ? 0 : wrong);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return Outcome::not_available;
  if (WIFSIGNALED(status)) return WTERMSIG(status) == SIGSYS ? Outcome::killed : Outcome::wrong;
  if (WEXITSTATUS(status) == 0) return Outcome::done;
  return WEXITSTATUS(status) == not_available ? Outcome::not_available : Outcome::wrong;
}

TEST(SystemCall, NoneInExtendOfOneToken) {
  const Outcome one_call = without_system_calls([] { return syscall(SYS_getppid) > 0; });
  if (one_call == Outcome::not_available) GTEST_SKIP() << "system calls cannot be filtered here";
  ASSERT_EQ(one_call, Outcome::killed);
  ASSERT_EQ(without_system_calls([] { return true; }), Outcome::done);
  const auto running = small_layer();
  with_every_cache(running.layer, [&](auto& cache) {
    Decoding decoding(running);
    EXPECT_EQ(without_system_calls([&] {
                decoding.run(cache);
                return !stores_scalar<std::remove_cvref_t<decltype(cache)>> || decoding.is_right();
              }),
              Outcome::done);
  });
}
#endif

}  // namespace
}  // namespace gated_attention::test
