#include "tools/foreign/pickle_reader.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/tools/pickle_builder.h"
#include "tools/foreign/snapshot_import.h"

namespace vramledger {
namespace {

using testing::Pickle;
using testing::PickleDict;
using testing::PickleInt;
using testing::PickleList;
using testing::PickleText;
using ::testing::Test;

std::string Error(std::string bytes, const PickleLimits& limits = {}) {
  return std::string(ReadPickle(std::move(bytes), limits).status().message());
}

TEST(PickleReader, ReadsPlainData) {
  const auto doc =
      ReadPickle(Pickle(PickleDict({{"a", PickleInt(7)}, {"b", PickleList({PickleText("x"), "N", "\x88", "K\x05"})}})));
  ASSERT_TRUE(doc.ok()) << doc.status();
  const PickleValue& root = (*doc)->root();
  EXPECT_EQ(root.Get("a")->integer, 7);
  const PickleValue& b = *root.Get("b");
  ASSERT_EQ(b.items.size(), 4u);
  EXPECT_EQ(b.items[0]->text, "x");
  EXPECT_EQ(b.items[1]->kind, PickleKind::kNone);
  EXPECT_EQ(b.items[2]->kind, PickleKind::kBool);
  EXPECT_EQ(b.items[3]->integer, 5);
  EXPECT_EQ(root.Get("c"), nullptr);
}

TEST(PickleReader, ReadsProtocolZero) {
  const auto doc = ReadPickle("(dp0\nVkey\np1\n(lp2\nI01\naI-5\naF1.5\naL12345678901234567890L\nas.");
  ASSERT_TRUE(doc.ok()) << doc.status();
  const PickleValue& list = *(*doc)->root().Get("key");
  ASSERT_EQ(list.items.size(), 4u);
  EXPECT_EQ(list.items[0]->kind, PickleKind::kBool);
  EXPECT_EQ(list.items[1]->integer, -5);
  EXPECT_DOUBLE_EQ(list.items[2]->number, 1.5);
  EXPECT_EQ(list.items[3]->kind, PickleKind::kHugeInt);
}

TEST(PickleReader, IntegersOfAllWidths) {
  const auto doc = ReadPickle(
      Pickle(PickleList({PickleInt(~uint64_t{0}), std::string("\x8a\x01\xff", 3), std::string("\x8a\x00", 2),
                         std::string("J\xff\xff\xff\xff", 5), std::string("\x8a\x0a\1\0\0\0\0\0\0\0\0\1", 12)})));
  ASSERT_TRUE(doc.ok()) << doc.status();
  const auto& items = (*doc)->root().items;
  EXPECT_TRUE(items[0]->unsigned_above_int64);
  EXPECT_EQ(static_cast<uint64_t>(items[0]->integer), ~uint64_t{0});
  EXPECT_EQ(items[1]->integer, -1);
  EXPECT_EQ(items[2]->integer, 0);
  EXPECT_EQ(items[3]->integer, -1);
  EXPECT_EQ(items[4]->kind, PickleKind::kHugeInt);
}

// Every opcode that could look up, build or call something, with the argument bytes it would have.
TEST(PickleReader, RefusesEveryOpcodeThatRunsCode) {
  const std::pair<const char*, std::string> kCases[] = {
      {"GLOBAL", "cos\nsystem\n"},
      {"STACK_GLOBAL", PickleText("os") + PickleText("system") + "\x93"},
      {"REDUCE", "N)R"},
      {"BUILD", "NNb"},
      {"INST", "(ios\nsystem\n"},
      {"OBJ", "(No"},
      {"NEWOBJ", "N)\x81"},
      {"NEWOBJ_EX", "N)}\x92"},
      {"PERSID", "Pid\n"},
      {"BINPERSID", "NQ"},
      {"EXT1", "\x82\x01"},
      {"EXT2", std::string("\x83\x01\0", 3)},
      {"EXT4", std::string("\x84\x01\0\0\0", 5)},
      {"NEXT_BUFFER", "\x97"},
      {"READONLY_BUFFER", "N\x98"}};
  for (const auto& [name, bytes] : kCases) {
    const std::string error = Error(Pickle(bytes));
    EXPECT_NE(error.find(std::string("opcode ") + name + " at byte "), std::string::npos) << name << ": " << error;
  }
}

TEST(PickleReader, NamesTheOffset) {
  EXPECT_NE(Error(Pickle("Ncos\nsystem\n")).find("GLOBAL at byte 3"), std::string::npos);
  EXPECT_NE(Error(std::string("\x80\x04}X\x05\0\0\0ab", 10)).find("cut off"), std::string::npos);
  EXPECT_NE(Error("\x80\x04}").find("without its STOP"), std::string::npos);
  EXPECT_NE(Error("\x80\x09N.").find("protocol 9"), std::string::npos);
  EXPECT_NE(Error(Pickle("\xfe")).find("byte 2 (0xfe) is no opcode"), std::string::npos);
}

TEST(PickleReader, KeepsItsLimits) {
  PickleLimits limits;
  limits.max_memory_bytes = 100000;
  EXPECT_NE(Error(Pickle(std::string(10000, 'N')), limits).find("limit of 100000 bytes"), std::string::npos);
  EXPECT_NE(Error(Pickle(std::string(2000, '('))).find("nested deeper"), std::string::npos);
  // A length that the file does not have costs no memory.
  EXPECT_NE(Error(std::string("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f", 11)).find("cut off"), std::string::npos);
}

TEST(PickleReader, AnObjectMayContainItself) {
  const auto doc = ReadPickle(std::string("\x80\x04]\x94h\0a.", 8));
  ASSERT_TRUE(doc.ok()) << doc.status();
  EXPECT_EQ((*doc)->root().items[0], &(*doc)->root());
}

// Random damage never crashes, and never succeeds in running anything (there is nothing to run): an error or a value.
TEST(PickleReader, SurvivesRandomDamage) {
  const std::string good = testing::SmallSnapshot();
  std::mt19937_64 random(20240229);
  int errors = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int k = 0; k < changes; ++k) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8)));
          break;
        case 1:
          bytes[at] = static_cast<char>(random());
          break;
        case 2:
          bytes.erase(at, 1 + random() % 8);
          break;
        default:
          bytes.insert(at, 1 + random() % 8, static_cast<char>(random()));
          break;
      }
      if (bytes.empty()) bytes.push_back('N');
    }
    const auto list = ImportSnapshot(bytes);
    if (!list.ok()) {
      ++errors;
      EXPECT_FALSE(list.status().message().empty());
    }
  }
  EXPECT_GT(errors, 15000);
}

TEST(PickleReader, EveryTruncationIsAnError) {
  const std::string good = testing::SmallSnapshot();
  ASSERT_TRUE(ImportSnapshot(good).ok());
  for (size_t n = 0; n < good.size(); ++n) EXPECT_FALSE(ImportSnapshot(good.substr(0, n)).ok()) << n;
}

}  // namespace
}  // namespace vramledger
