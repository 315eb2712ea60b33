#include "server/deadline_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/clock.h"

namespace vericache {
namespace {

using std::chrono::milliseconds;

// Whether one of the events came within that time.
bool ComesWithin(socket_t socket, short events, Clock::duration time) {
  const Clock::time_point until = Clock::now() + time;
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
    pollfd waits{.fd = socket, .events = events, .revents = 0};
    const int count = poll(&waits, 1, static_cast<int>(std::max(left, milliseconds(0)).count()));
    if (count >= 0 || errno != EINTR) {
      return count > 0;
    }
  }
}

// As the library's own, which is not for others to use, but for `until`, when a request must be
// there.
class ClientStream final : public httplib::Stream {
 public:
  ClientStream(socket_t socket, Clock::time_point until, Clock::duration read_timeout,
               Clock::duration write_timeout)
      : socket_(socket),
        until_(until),
        read_timeout_(read_timeout),
        write_timeout_(write_timeout) {}

  bool is_readable() const override { return begin_ < end_; }
  bool wait_readable() const override {
    const Clock::duration left = until_ - Clock::now();
    return left > Clock::duration::zero() &&
           ComesWithin(socket_, POLLIN, std::min(read_timeout_, left));
  }
  bool wait_writable() const override { return ComesWithin(socket_, POLLOUT, write_timeout_); }
  bool is_peer_alive() const override {
    char byte = 0;
    return !ComesWithin(socket_, POLLIN, {}) || recv(socket_, &byte, 1, MSG_PEEK) > 0;
  }

  ssize_t read(char* to, std::size_t size) override {
    if (begin_ == end_ && !Fill()) {
      return error_ == httplib::Error::ConnectionClosed ? 0 : -1;
    }
    const std::size_t count = std::min(size, end_ - begin_);
    std::memcpy(to, buffer_.data() + begin_, count);
    begin_ += count;
    return static_cast<ssize_t>(count);
  }
  const char* buffered_data(std::size_t& size) const override {
    size = end_ - begin_;
    return size == 0 ? nullptr : buffer_.data() + begin_;
  }
  void consume_buffered(std::size_t size) override { begin_ += std::min(size, end_ - begin_); }

  ssize_t write(const char* from, std::size_t size) override {
    return wait_writable() ? send(socket_, from, size, MSG_NOSIGNAL) : -1;
  }

  void get_remote_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  void get_local_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  socket_t socket() const override { return socket_; }
  time_t duration() const override { return 0; }

 private:
  bool Fill() {
    if (!wait_readable()) {
      error_ = httplib::Error::Timeout;
      return false;
    }
    const ssize_t count = recv(socket_, buffer_.data(), buffer_.size(), 0);
    if (count <= 0) {
      error_ = count == 0 ? httplib::Error::ConnectionClosed : httplib::Error::Read;
      return false;
    }
    begin_ = 0;
    end_ = static_cast<std::size_t>(count);
    return true;
  }

  socket_t socket_;
  Clock::time_point until_;
  Clock::duration read_timeout_;
  Clock::duration write_timeout_;
  std::array<char, 4096> buffer_{};
  std::size_t begin_ = 0;  // of what is in the buffer
  std::size_t end_ = 0;
};

// What the client still sends is taken for a moment: else its system would throw the answer away.
void DrainAndClose(socket_t socket) {
  constexpr milliseconds kMoment{100};
  constexpr std::size_t kMost = std::size_t{1} << 20U;
  shutdown(socket, SHUT_WR);
  std::array<char, 4096> buffer{};
  const Clock::time_point until = Clock::now() + kMoment;
  ssize_t count = 1;
  for (std::size_t all = 0; count > 0 && all < kMost && Clock::now() < until;
       all += static_cast<std::size_t>(count)) {
    count = ComesWithin(socket, POLLIN, until - Clock::now())
                ? recv(socket, buffer.data(), buffer.size(), 0)
                : 0;
    count = std::max<ssize_t>(count, 0);
  }
  close(socket);
}

}  // namespace

// Waits for the next request of a connection, as long as the server does not end.
bool DeadlineServer::HasRequest(socket_t socket) const {
  constexpr milliseconds kLook{10};
  const Clock::time_point until = Clock::now() + std::chrono::seconds(keep_alive_timeout_sec_);
  while (!ComesWithin(socket, POLLIN, kLook)) {
    if (svr_sock_ == INVALID_SOCKET || Clock::now() > until) {
      return false;
    }
  }
  return true;
}

bool DeadlineServer::process_and_close_socket(socket_t socket) {
  const bool served = serve_guarded([&] {
    bool goes_on = true;
    for (std::size_t left = keep_alive_max_count_; goes_on && left > 0 && HasRequest(socket);
         --left) {
      ClientStream stream(socket, Clock::now() + request_timeout_,
                          std::chrono::seconds(read_timeout_sec_),
                          std::chrono::seconds(write_timeout_sec_));
      bool closed = false;
      goes_on = process_request(stream, "", 0, "", 0, left == 1, closed, nullptr) && !closed;
    }
    return goes_on;
  });
  DrainAndClose(socket);
  return served;
}

}  // namespace vericache
