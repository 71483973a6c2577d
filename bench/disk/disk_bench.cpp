// What a disk gives to the engine's own read queues: GB/s by size of a read and number of reads at once.
//   bench_disk [--file PATH] [--size 2GiB] [--block 128K,512K,1M,4M] [--depth 1,4,8,16,32] [--queues 1,4]
//              [--io uring,pread] [--direct on,off] [--seconds 1] [--registered on|off] [--batch BYTES]
// --batch: so many bytes of neighbours are read, and all of them awaited, before the next: one expert at a time.
// Without --file it writes one of that size into the current folder and deletes it at the end. Reads are at random
// places of the file, aligned to the block, as experts are. pread has one read at once for each queue. cpu: processor
// time of this program beside wall time.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "expertflow/base/clock.h"
#include "expertflow/base/errors.h"
#include "expertflow/base/read_queue.h"

namespace ef {
namespace {

struct Options {
  std::string file;
  uint64_t size = 2ull << 30;
  std::vector<uint64_t> blocks = {128 << 10, 512 << 10, 1 << 20, 4 << 20};
  std::vector<uint64_t> depths = {1, 4, 8, 16, 32};
  std::vector<uint64_t> queues = {1, 4};
  std::vector<std::string> io = {"uring", "pread"}, direct = {"on"};
  double seconds = 1;
  bool registered = true;
  uint64_t batch = 0;
};

uint64_t parse_size(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  switch (*end) {
    case 'k':
    case 'K':
      return uint64_t(value * 1024);
    case 'm':
    case 'M':
      return uint64_t(value * (1 << 20));
    case 'g':
    case 'G':
      return uint64_t(value * (1 << 30));
    case 0:
      return uint64_t(value);
  }
  fail<ConfigError>("expected a size, found {}", text);
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> out(1);
  for (const char c : text)
    if (c == ',')
      out.emplace_back();
    else
      out.back() += c;
  return out;
}

std::vector<uint64_t> sizes(const std::string& text) {
  std::vector<uint64_t> out;
  for (const std::string& item : split(text)) out.push_back(parse_size(item));
  return out;
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    EF_CHECK(i + 1 < argc, ConfigError, "{}: expected a value", name);
    const std::string value = argv[++i];
    if (name == "--file")
      o.file = value;
    else if (name == "--size")
      o.size = parse_size(value);
    else if (name == "--block")
      o.blocks = sizes(value);
    else if (name == "--depth")
      o.depths = sizes(value);
    else if (name == "--queues")
      o.queues = sizes(value);
    else if (name == "--io")
      o.io = split(value);
    else if (name == "--direct")
      o.direct = split(value);
    else if (name == "--seconds")
      o.seconds = std::atof(value.c_str());
    else if (name == "--batch")
      o.batch = parse_size(value);
    else if (name == "--registered")
      o.registered = value == "on";
    else
      fail<ConfigError>("unknown flag {}", name);
  }
  return o;
}

// Random bytes: a disk that compresses or leaves zeros out would flatter itself.
void write_file(const std::string& path, uint64_t size) {
  std::vector<uint64_t> block(1 << 19);
  std::mt19937_64 random(1);
  std::ofstream out(path, std::ios::binary);
  for (uint64_t at = 0; at < size; at += block.size() * 8) {
    for (uint64_t& v : block) v = random();
    out.write(reinterpret_cast<const char*>(block.data()), std::streamsize(block.size() * 8));
  }
  out.close();
  EF_CHECK(out.good(), DeviceError, "{}: cannot write {} bytes", path, size);
  const int fd = ::open(path.c_str(), O_RDONLY);
  ::fsync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds_of = [](const timeval& t) { return double(t.tv_sec) + double(t.tv_usec) * 1e-6; };
  return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

struct Row {
  double gbs = 0, cpu = 0;
};

// Every queue has its own thread and reads batches of as many blocks as it may have at once.
Row measure(const Options& o, const ReadFile& file, const std::string& io, uint64_t block, uint64_t depth,
            uint64_t queues) {
  const uint64_t each = std::max<uint64_t>(1, depth / queues);
  ReadQueueOptions options;
  options.depth = int(each);
  options.read_bytes = block;
  std::vector<std::unique_ptr<ReadQueue>> all;
  if (io == "uring") {
    UringQueues made = make_uring_queues(int(queues), options);
    EF_CHECK(!made.queues.empty(), DeviceError, "io_uring: {}", made.why_not);
    all = std::move(made.queues);
  } else {
    for (uint64_t q = 0; q < queues; ++q) all.push_back(make_pread_queue(options));
  }
  // The end of a batch drains the queue: seldom, as far as memory goes.
  uint64_t batch = std::max<uint64_t>(each, std::min<uint64_t>(each * 16, (256 << 20) / queues / block));
  if (o.batch > 0) batch = std::max<uint64_t>(1, o.batch / block);
  std::vector<PageBuffer> buffers;
  for (uint64_t q = 0; q < queues; ++q) {
    buffers.emplace_back(batch * block);
    std::fill(buffers[q].bytes().begin(), buffers[q].bytes().end(), std::byte{1});  // its pages are there
    const std::string refused = o.registered ? all[q]->register_memory(buffers[q].bytes()) : "";
    if (!refused.empty()) fmt::print(stderr, "registered buffers refused: {}\n", refused);
  }
  std::atomic<uint64_t> bytes{0};
  const SteadyClock clock;
  const Duration begin = clock.now();
  const double cpu = processor_seconds();
  std::vector<std::thread> threads;
  for (uint64_t q = 0; q < queues; ++q)
    threads.emplace_back([&, q] {
      const PageBuffer& memory = buffers[q];
      std::mt19937_64 random(q);
      while (seconds(clock.now() - begin) < o.seconds) {
        std::vector<ReadRequest> requests;
        const uint64_t blocks = file.source().size() / block, first = random() % (blocks - std::min(blocks, batch) + 1);
        for (uint64_t i = 0; i < batch; ++i) {
          const uint64_t at = o.batch > 0 ? first + i : random() % blocks;
          requests.push_back({&file, at * block, memory.bytes().subspan(i * block, block), block});
        }
        all[q]->read(requests, [](size_t) {});
        bytes += batch * block;
      }
    });
  for (std::thread& t : threads) t.join();
  const double wall = seconds(clock.now() - begin);
  return {double(bytes) / wall * 1e-9, (processor_seconds() - cpu) / wall};
}

int run(int argc, char** argv) {
  Options o = parse(argc, argv);
  const bool own = o.file.empty();
  if (own) {
    o.file = fmt::format("bench_disk.{}.tmp", ::getpid());
    write_file(o.file, o.size);
  }
  const auto remove = [&] {
    if (own) std::filesystem::remove(o.file);
  };
  try {
    std::string command;
    for (int i = 0; i < argc; ++i) command += (i ? " " : "") + std::string(argv[i]);
    const FileSource source(o.file);
    fmt::print("{}\n{} of {:.2f} GB\n", command, std::filesystem::absolute(o.file).string(),
               double(source.size()) * 1e-9);
    fmt::print(
        "| io | direct | block KiB | at once | queues | GB/s | cpu |\n| --- | --- | --- | --- | --- | --- | --- |\n");
    double best = 0;
    for (const std::string& direct : o.direct) {
      const ReadFile file(source, direct == "on" ? DirectIo::kOn : DirectIo::kOff);
      for (const std::string& io : o.io)
        for (const uint64_t block : o.blocks)
          for (const uint64_t depth : o.depths)
            for (const uint64_t queues : io == "pread" ? std::vector<uint64_t>{depth} : o.queues) {
              if (queues > depth) continue;
              const Row row = measure(o, file, io, block, depth, queues);
              if (direct == "on") best = std::max(best, row.gbs);
              fmt::print("| {} | {} | {} | {} | {} | {:.2f} | {:.2f} |\n", io, direct, block >> 10, depth, queues,
                         row.gbs, row.cpu);
              std::fflush(stdout);
            }
    }
    fmt::print("peak: {:.2f} GB/s\n", best);
  } catch (...) {
    remove();
    throw;
  }
  remove();
  return 0;
}

}  // namespace
}  // namespace ef

int main(int argc, char** argv) {
  try {
    return ef::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_disk: %s\n", e.what());
    return 1;
  }
}
