// The dashboard: web/dist/index.html as it was built.
#pragma once
#include <string_view>

namespace ef::server {

std::string_view page();

}  // namespace ef::server
