// Apart from the other errors: few have to do with it.
#pragma once
#include "expertflow/base/errors.h"

namespace ef {

/// The device itself is lost: this process computes nothing on it any more. Exit code 4.
class DeviceLostError : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

}  // namespace ef
