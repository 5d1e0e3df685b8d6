// Text that comes from a file nobody vouches for: is it UTF-8, and how to show it in a message.
#pragma once

#include <string>
#include <string_view>

namespace treadle {

// Strict UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text);

// The text between single quotes, cut to a readable length; bytes that are not printable ASCII or valid UTF-8 become
// \xNN, so that a message can neither break a terminal nor fail to decode.
std::string quoted(std::string_view text);

// As quoted(), without quotes and uncut: for paths.
std::string printable(std::string_view text);

}  // namespace treadle
