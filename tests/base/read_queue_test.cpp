// Read queues: one suite for both kinds, on real files, with the kernel's answers replaced where a fault is wanted.
#include "expertflow/base/read_queue.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <map>
#include <mutex>
#include <numeric>
#include <random>

#include "expertflow/base/errors.h"

namespace ef {
namespace {

namespace fs = std::filesystem;

// A file of random bytes whose length is no multiple of any sector.
class ReadQueues : public ::testing::TestWithParam<std::tuple<const char*, DirectIo>> {
 protected:
  static constexpr size_t kSize = 300'007;
  void SetUp() override {
    std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    for (char& c : name)
      if (c == '/') c = '-';
    path_ = fs::temp_directory_path() / ("expertflow-queue-" + name + "-" + std::to_string(::getpid()));
    content_.resize(kSize);
    std::mt19937 random(1);
    for (char& c : content_) c = char(random());
    std::ofstream(path_, std::ios::binary) << content_;
    source_ = std::make_unique<FileSource>(path_);
    options_.depth = 4;
    options_.read_bytes = 16384;
    open();
  }
  void TearDown() override { fs::remove(path_); }
  void open() {
    queue_.reset();
    file_ = std::make_unique<ReadFile>(*source_, std::get<1>(GetParam()), options_.faults);
    if (std::get<0>(GetParam()) == std::string("pread")) {
      queue_ = make_pread_queue(options_);
      return;
    }
    UringQueues made = make_uring_queues(1, options_);
    if (made.queues.empty()) GTEST_SKIP() << made.why_not;
    queue_ = std::move(made.queues.front());
  }
  // The window of [offset, offset + bytes) at a page of the buffer.
  ReadRequest window(uint64_t offset, uint64_t bytes, uint64_t page) {
    const uint64_t a = file_->offset_alignment(), begin = offset / a * a, end = (offset + bytes + a - 1) / a * a;
    return {file_.get(), begin, memory_.bytes().subspan(page * 4096, end - begin), offset + bytes - begin};
  }
  bool came(const ReadRequest& r, uint64_t offset, uint64_t bytes) const {
    return std::memcmp(r.to.data() + (offset - r.offset), content_.data() + offset, bytes) == 0;
  }
  std::string error(const std::vector<ReadRequest>& requests) {
    try {
      queue_->read(requests, [](size_t) {});
    } catch (const DeviceError& e) {
      return e.what();
    }
    return "";
  }

  fs::path path_;
  std::string content_;
  ReadQueueOptions options_;
  PageBuffer memory_{2 << 20};
  std::unique_ptr<FileSource> source_;
  std::unique_ptr<ReadFile> file_;
  std::unique_ptr<ReadQueue> queue_;
};

// F5: places and lengths that are multiples of nothing.
TEST_P(ReadQueues, F5_AnyRangeArrives) {
  for (const bool registered : {false, true}) {
    if (registered) {
      EXPECT_EQ(queue_->register_memory(memory_.bytes().first(1 << 20)), "");
    }
    const std::vector<std::pair<uint64_t, uint64_t>> ranges = {{0, 1},           {511, 2},         {4095, 4097},
                                                               {12345, 100'000}, {kSize - 1, 1},   {kSize - 5000, 5000},
                                                               {70'000, 0},      {131'072, 16'384}};
    std::vector<ReadRequest> requests;
    for (size_t i = 0; i < ranges.size(); ++i) requests.push_back(window(ranges[i].first, ranges[i].second, i * 40));
    std::vector<int> done(ranges.size());
    queue_->read(requests, [&](size_t i) {
      ++done[i];
      EXPECT_TRUE(came(requests[i], ranges[i].first, ranges[i].second)) << i;
    });
    EXPECT_EQ(done, std::vector<int>(ranges.size(), 1));
  }
}

TEST_P(ReadQueues, MoreReadsThanTheQueueIsDeep) {
  std::vector<ReadRequest> requests;
  for (uint64_t i = 0; i < 60; ++i) requests.push_back(window(i * 4999, 300, i * 2));
  int done = 0;
  queue_->read(requests, [&](size_t) { ++done; });
  EXPECT_EQ(done, 60);
  for (uint64_t i = 0; i < 60; ++i) EXPECT_TRUE(came(requests[i], i * 4999, 300)) << i;
}

TEST_P(ReadQueues, BehindTheEndIsAShortRead) {
  const std::string message = error({window(kSize - 10, 20, 0)});
  EXPECT_NE(message.find(path_.string()), std::string::npos) << message;
  EXPECT_NE(message.find("short read"), std::string::npos) << message;
  EXPECT_EQ(error({window(0, 100, 0)}), "");
}

TEST_P(ReadQueues, ShortAndInterruptedReadsGoOn) {
  std::map<uint64_t, int> seen;
  options_.faults.result = [&](uint64_t offset, std::span<std::byte>, int64_t result) -> int64_t {
    switch (seen[offset]++) {
      case 0:
        return -EINTR;
      case 1:
        return -EAGAIN;
      case 2:
        return result > 6000 ? 5001 : result;  // part of it, ending within a sector
      default:
        return result;
    }
  };
  open();
  const ReadRequest r = window(777, 150'000, 0);
  EXPECT_EQ(error({r}), "");
  EXPECT_TRUE(came(r, 777, 150'000));
  EXPECT_GT(seen.size(), 10u);
}

TEST_P(ReadQueues, NoProgressEnds) {
  int reads = 0;
  options_.faults.result = [&](uint64_t, std::span<std::byte>, int64_t) -> int64_t {
    ++reads;
    return -EAGAIN;
  };
  open();
  EXPECT_NE(error({window(0, 100, 0)}).find("without progress"), std::string::npos);
  EXPECT_LT(reads, 100);
}

TEST_P(ReadQueues, AnErrorIsNamedAndTheQueueWorksOn) {
  bool fails = true;
  options_.faults.result = [&](uint64_t offset, std::span<std::byte>, int64_t result) -> int64_t {
    return fails && offset >= 100'000 ? -EIO : result;
  };
  open();
  std::vector<ReadRequest> requests;
  for (uint64_t i = 0; i < 20; ++i) requests.push_back(window(i * 14'000, 9000, i * 8));
  const std::string message = error(requests);
  EXPECT_NE(message.find(path_.string()), std::string::npos) << message;
  EXPECT_NE(message.find("Input/output error"), std::string::npos) << message;
  fails = false;
  EXPECT_EQ(error(requests), "");
  for (uint64_t i = 0; i < 20; ++i) EXPECT_TRUE(came(requests[i], i * 14'000, 9000)) << i;
}

TEST_P(ReadQueues, WhatTheCallerThrowsComesOutAfterTheLastRead) {
  std::vector<ReadRequest> requests;
  for (uint64_t i = 0; i < 20; ++i) requests.push_back(window(i * 14'000, 9000, i * 8));
  EXPECT_THROW(queue_->read(requests, [](size_t) { fail<ModelError>("bad content"); }), ModelError);
  EXPECT_EQ(error(requests), "");
}

TEST_P(ReadQueues, SourcesThatAreNoFilesAreReadThroughThemselves) {
  MemorySource memory("memory", std::as_bytes(std::span(content_)));
  const ReadFile file(memory, std::get<1>(GetParam()));
  EXPECT_FALSE(file.direct());
  const ReadRequest r{&file, 4321, memory_.bytes().first(60'000), 60'000};
  EXPECT_EQ(error({r, window(5, 5, 100)}), "");
  EXPECT_TRUE(came(r, 4321, 60'000));
  EXPECT_NE(error({{&file, kSize, memory_.bytes().first(1), 1}}), "");
}

INSTANTIATE_TEST_SUITE_P(Kinds, ReadQueues,
                         ::testing::Combine(::testing::Values("pread", "uring"),
                                            ::testing::Values(DirectIo::kAuto, DirectIo::kOff)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) == DirectIo::kOff ? "Buffered" : "Direct");
                         });

// F5: whoever refuses, the reason is there with its errno, and reads go through the page cache.
TEST(ReadFile, F5_RefusedDirectReadsAreNamed) {
  const fs::path path = fs::temp_directory_path() / ("expertflow-direct-" + std::to_string(::getpid()));
  std::ofstream(path) << std::string(10'000, 'x');
  {
    const FileSource source(path);
    IoFaults faults;
    faults.open_direct = [] { return EINVAL; };
    const ReadFile file(source, DirectIo::kAuto, faults);
    EXPECT_FALSE(file.direct());
    EXPECT_EQ(file.why_buffered(), "O_DIRECT: Invalid argument (errno 22)");
    EXPECT_EQ(file.offset_alignment(), 1u);
    EXPECT_GE(file.descriptor(), 0);
    try {
      const ReadFile demanded(source, DirectIo::kOn, faults);
      FAIL() << "no error";
    } catch (const DeviceError& e) {
      EXPECT_NE(std::string(e.what()).find("errno 22"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find(path.string()), std::string::npos) << e.what();
    }
    EXPECT_EQ(ReadFile(source, DirectIo::kOff).why_buffered(), "asked for");
  }
  fs::remove(path);
}

// The name may mean another file by now: what is read is the one that was opened.
TEST(ReadFile, AReplacedFileIsStillTheOneThatWasOpened) {
  const fs::path path = fs::temp_directory_path() / ("expertflow-replaced-" + std::to_string(::getpid()));
  std::ofstream(path) << std::string(5000, 'a');
  {
    const FileSource source(path);
    fs::remove(path);
    std::ofstream(path) << std::string(5000, 'b');
    const ReadFile file(source, DirectIo::kAuto);
    PageBuffer memory(8192);
    const ReadRequest request{&file, 0, memory.bytes().first(file.direct() ? 8192 : 5000), 5000};
    make_pread_queue({})->read({&request, 1}, [](size_t) {});
    EXPECT_EQ(char(memory.data()[4999]), 'a');
  }
  fs::remove(path);
}

TEST(UringQueues, RefusalsAreNamed) {
  ReadQueueOptions options;
  options.faults.create_ring = [] { return ENOSYS; };
  const UringQueues made = make_uring_queues(2, options);
  EXPECT_TRUE(made.queues.empty());
  EXPECT_TRUE(made.why_not == "io_uring_setup: Function not implemented (errno 38)" ||
              made.why_not.starts_with("not built in"))
      << made.why_not;
}

// F6: memory that may not be pinned is read to all the same.
TEST(UringQueues, F6_UnregisteredMemoryIsReadToAllTheSame) {
  ReadQueueOptions options;
  options.faults.pin_memory = [] { return ENOMEM; };
  UringQueues made = make_uring_queues(1, options);
  if (made.queues.empty()) GTEST_SKIP() << made.why_not;
  const fs::path path = fs::temp_directory_path() / ("expertflow-pinned-" + std::to_string(::getpid()));
  std::ofstream(path) << std::string(8192, 'a');
  {
    const FileSource source(path);
    const ReadFile file(source, DirectIo::kAuto);
    PageBuffer memory(8192);
    EXPECT_EQ(made.queues[0]->register_memory(memory.bytes()), "Cannot allocate memory (errno 12)");
    const ReadRequest request{&file, 0, memory.bytes(), 8192};
    made.queues[0]->read({&request, 1}, [](size_t) {});
    EXPECT_EQ(char(memory.data()[8191]), 'a');
  }
  fs::remove(path);
}

}  // namespace
}  // namespace ef
