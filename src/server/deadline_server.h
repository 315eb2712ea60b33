#pragma once

#include <chrono>

#include "httplib.h"

namespace vericache {

// The library's server, but a client has only so long to send a request as a whole, and not merely
// to go on with it: one that sends a byte now and then holds a thread no longer than that.
class DeadlineServer : public httplib::Server {
 public:
  explicit DeadlineServer(std::chrono::seconds request_timeout)
      : request_timeout_(request_timeout) {}

 private:
  bool process_and_close_socket(socket_t socket) override;
  bool HasRequest(socket_t socket) const;

  std::chrono::seconds request_timeout_;
};

}  // namespace vericache
