// Python's view of text (code points, whitespace, case) over UTF-8 strings. Bytes that are not UTF-8 count as one
// character each.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ef::jinja {

/// Bytes of the character that starts at text[pos]; at least 1, never past the end.
size_t char_length(std::string_view text, size_t pos);
/// The code point that starts at text[pos]; 0xFFFD for an invalid byte.
int32_t code_point(std::string_view text, size_t pos);
void append_utf8(std::string& out, int32_t code_point);

size_t count_chars(std::string_view text);
/// Byte offset of every character, and the total size as the last element.
std::vector<size_t> char_offsets(std::string_view text);

/// str.isspace of Python for one code point.
bool is_space(int32_t code_point);
bool is_alpha(int32_t code_point);
bool is_digit(int32_t code_point);
bool is_upper(int32_t code_point);
bool is_lower(int32_t code_point);
/// str.isprintable of Python: decides what repr() escapes.
bool is_printable(int32_t code_point);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
/// First character in upper case, the rest in lower case.
std::string capitalize(std::string_view text);
/// str.title(): upper case after every character that has no case.
std::string title_words(std::string_view text);

/// Strips whitespace, or the characters of `chars` where it is not null.
std::string_view strip(std::string_view text, bool left, bool right, const std::string* chars = nullptr);

}  // namespace ef::jinja
