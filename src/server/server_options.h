#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace vericache {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;                    // 0: any that is free
  std::string model_name;             // by which clients call the model
  std::vector<std::string> api_keys;  // one of which clients must send; none: anyone may ask
  std::size_t body_limit = 8U << 20U;
  int context = 0;                           // tokens of prompt and answer, at most
  int max_tokens = 1024;                     // of an answer, where a request does not say
  int queue = 64;                            // answers that wait for the engine, at most
  std::chrono::seconds deadline{600};        // of an answer, from when it was asked for
  std::chrono::seconds read_timeout{10};     // for a client to go on with its request
  std::chrono::seconds request_timeout{60};  // for a client to send all of it
};

}  // namespace vericache
