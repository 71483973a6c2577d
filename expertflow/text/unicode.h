// UTF-8 and the few Unicode operations that tokenizers need. Unicode data: utf8proc (its Unicode version is the
// platform's).
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ef {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

/// Bytes of the UTF-8 sequence at text[position]; 0 where none is well formed (stray or missing continuation, overlong
/// form, surrogate, above U+10FFFF).
size_t utf8_length(std::string_view text, size_t position);
bool utf8_valid(std::string_view text);
/// The code point at text[position] of well-formed text; advances position past it.
char32_t utf8_next(std::string_view text, size_t& position);
void utf8_append(std::string& out, char32_t code_point);
/// Well-formed text: each maximal ill-formed part becomes one U+FFFD (the practice of WHATWG and of Rust's
/// from_utf8_lossy).
std::string utf8_lossy(std::string_view bytes);

/// No text becomes more than so many times shorter, in bytes, by a normal form or by lower case: of all characters,
/// what one is made of is at most so many times as long as it is.
inline constexpr size_t kMostUnicodeShrinking = 4;

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
/// Linear but for sorting runs of combining marks (n log n), so that hostile text cannot stall it. Input must be well
/// formed.
std::string unicode_normalize(std::string_view text, NormalForm form);
/// Full lower case, one code point at a time (no final sigma rule, as in Hugging Face's tokenizers).
std::string unicode_lower(std::string_view text);

bool is_white_space(char32_t c);  ///< the Unicode property White_Space
bool is_numeric(char32_t c);      ///< general category Nd, Nl or No
bool is_punctuation(char32_t c);  ///< general category P*, or ASCII punctuation
bool is_word(char32_t c);         ///< regex \w: Alphabetic, M, Nd, Pc

/// GPT-2's byte alphabet: every byte as one printable code point (published with GPT-2's encoder.py).
char32_t byte_to_printable(unsigned char byte);
std::string bytes_to_printable(std::string_view bytes);
/// Inverse; nullopt if some code point is not in the alphabet.
std::optional<std::string> printable_to_bytes(std::string_view text);

}  // namespace ef
