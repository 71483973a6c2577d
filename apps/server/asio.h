// Boost.Asio and its names, for sources alone.
#pragma once
// Boost 1.74 forgets <utility>.
#include <utility>
// clang-format off
#include <boost/asio.hpp>
// clang-format on

namespace ef::server {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using boost::system::error_code;

}  // namespace ef::server
