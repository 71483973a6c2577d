#include "expertflow/base/io.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "expertflow/base/errors.h"

namespace ef {
namespace {

namespace fs = std::filesystem;

class Io : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ =
        fs::temp_directory_path() / ("expertflow-io-" + std::string(test->name()) + "-" + std::to_string(::getpid()));
    write("0123456789");
  }
  void TearDown() override { fs::remove(path_); }
  void write(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }
  // A write may fall into the clock tick of the one before: the time is set, not waited for.
  void set_time(int64_t seconds) const {
    const timespec times[2] = {{seconds, 0}, {seconds, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, path_.c_str(), times, 0), 0);
  }
  static std::string read(const ByteSource& source, uint64_t offset, size_t n) {
    std::string out(n, '?');
    source.read(offset, std::as_writable_bytes(std::span(out)));
    return out;
  }
  static std::string error(const ByteSource& source, uint64_t offset, size_t n) {
    try {
      read(source, offset, n);
    } catch (const DeviceError& e) {
      return e.what();
    }
    return "";
  }
  fs::path path_;
};

TEST_F(Io, ReadsRangesAndNamesAShortRead) {
  FileSource file(path_);
  EXPECT_EQ(file.size(), 10u);
  EXPECT_EQ(read(file, 3, 4), "3456");
  EXPECT_EQ(read(file, 10, 0), "");
  const std::string message = error(file, 8, 5);
  EXPECT_NE(message.find(path_.string()), std::string::npos);
  EXPECT_NE(message.find("expected 5 bytes, found 2"), std::string::npos) << message;
}

TEST_F(Io, F12_AFileThatBecomesAnotherModelIsRefused) {
  set_time(1'000'000);
  FileSource file(path_);
  EXPECT_EQ(read(file, 0, 3), "012");
  write("abcdefghij");  // same name, same size, other bytes
  set_time(2'000'000);
  EXPECT_NE(error(file, 0, 3).find("changed since it was opened"), std::string::npos);
  write("abc");
  set_time(1'000'000);  // same time, other size
  EXPECT_NE(error(file, 0, 3).find("10 bytes then, 3 now"), std::string::npos);
}

TEST_F(Io, AReplacedFileIsStillTheOneThatWasOpened) {
  FileSource file(path_);
  fs::remove(path_);
  write("abcdefghij");
  EXPECT_EQ(read(file, 0, 3), "012");
}

TEST_F(Io, MissingFilesFoldersAndLargeTextsAreRefused) {
  EXPECT_THROW(FileSource(path_ / "missing"), ModelError);
  EXPECT_THROW(FileSource(fs::temp_directory_path()), ModelError);
  EXPECT_THROW(read_text_file(path_, 9), ModelError);
  EXPECT_EQ(read_text_file(path_, 10), "0123456789");
}

TEST_F(Io, MemorySourcesCheckTheirRange) {
  const std::string bytes = "0123456789";
  MemorySource memory("memory", std::as_bytes(std::span(bytes)));
  EXPECT_EQ(read(memory, 7, 3), "789");
  EXPECT_NE(error(memory, 7, 4).find("expected 4 bytes, found 3"), std::string::npos);
  EXPECT_NE(error(memory, UINT64_MAX, 2), "");
}

}  // namespace
}  // namespace ef
