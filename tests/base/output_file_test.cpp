// Outputs that are no plain new file: links, pipes, and files that another writer has in hand.
#include "expertflow/base/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "expertflow/base/errors.h"
#include "expertflow/base/io.h"
#include "tests/support/temp_folder.h"

namespace ef::testing {
namespace {

namespace fs = std::filesystem;

void put(const fs::path& path, std::string_view text) {
  OutputFile out(path);
  out.write(0, std::as_bytes(std::span(text)));
  out.complete(text.size());
  out.publish();
}

TEST(OutputFile, LinksAreFollowed) {
  const TempFolder folder;
  std::ofstream(folder.path / "there.txt") << "old";
  fs::create_symlink("there.txt", folder.path / "near");
  fs::create_symlink(folder.path / "near", folder.path / "far");
  fs::create_symlink("nothing.txt", folder.path / "dangling");
  put(folder.path / "far", "new");
  put(folder.path / "dangling", "made");
  EXPECT_TRUE(fs::is_symlink(folder.path / "far") && fs::is_symlink(folder.path / "dangling"));
  EXPECT_EQ(read_text_file(folder.path / "there.txt"), "new");
  EXPECT_EQ(read_text_file(folder.path / "nothing.txt"), "made");
}

TEST(OutputFile, PipesAreWrittenThrough) {
  const TempFolder folder;
  const fs::path pipe = folder.path / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDWR | O_CLOEXEC);
  {
    OutputFile given_up(pipe);
    given_up.write(0, std::as_bytes(std::span("no", 2)));
  }
  put(pipe, "through");
  char text[16] = {};
  EXPECT_EQ(read(reader, text, sizeof(text)), 7);
  EXPECT_STREQ(text, "through");
  close(reader);
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path), {}), 1);
}

TEST(OutputFile, OneWriterAtATime) {
  const TempFolder folder;
  const fs::path file = folder.path / "a";
  std::ofstream(folder.path / "a.partial") << "left by a process that died";
  OutputFile first(file);
  try {
    OutputFile second(file);
    ADD_FAILURE() << "two at once";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("another process"), std::string::npos) << error.what();
  }
  first.write(0, std::as_bytes(std::span("1", 1)));
  first.complete(1);
  first.publish();
  EXPECT_EQ(read_text_file(file), "1");
  put(file, "2");
  EXPECT_EQ(read_text_file(file), "2");
}

}  // namespace
}  // namespace ef::testing
