// general.file_type: what llama.cpp calls a file as a whole (enum llama_ftype of llama.h).
#pragma once
#include "expertflow/convert/plan.h"

namespace ef {

/// llama_ftype of a file whose matrices are mostly of this format; 1024 ("guessed") if there is none.
int file_type_of(Format format);
/// From the format that most of the plan's numbers have.
void set_file_type(GgufPlan& plan);

}  // namespace ef
