// Many clients at once, and those that leave, wait too long or send too slowly.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "server/served.h"

namespace vericache {
namespace {

// Fast memory for two or three at a time, and a link that all full caches cross: every state that a
// request can be in comes up.
EngineOptions Scarce() {
  EngineOptions options = VeriCacheOptions("snapkv+kivi4", 0.3, 6);
  options.batch = 6;
  options.prefill_chunk = 64;
  options.link_bandwidth = 2e9;
  options.fast_memory = FastMemoryNeed(LoadTiny(ServedModel()), options,
                                       {.tokens = std::vector<TokenId>(200), .max_tokens = 40}) *
                        3;
  return options;
}

Json Body(unsigned i) {
  const std::string text = "Question " + std::to_string(i) + ": " +
                           std::string(i * 7 % 120, 'a' + static_cast<char>(i % 26));
  Json body = {{"max_tokens", 8 + i % 25}, {"seed", i}, {"temperature", i % 2 == 0 ? 0.0 : 1.0}};
  if (i % 3 == 0) {
    body["prompt"] = text;
  } else {
    body["messages"] = {{{"role", "user"}, {"content", text}}};
  }
  return body;
}
std::string Path(unsigned i) { return i % 3 == 0 ? "/v1/completions" : "/v1/chat/completions"; }

std::string TextOf(const Json& answer) {
  const Json& choice = answer.at("choices").at(0);
  return choice.contains("text") ? choice["text"] : choice["message"]["content"];
}
std::string TextOf(const std::vector<Json>& events) {
  std::string text;
  for (const Json& event : events) {
    const Json& choice = event.at("choices").at(0);
    text += choice.contains("text") ? choice["text"].get<std::string>()
                                    : choice["delta"].value("content", "");
  }
  return text;
}

TEST(ServerLoad, AnswersAreThoseOfEachAloneWhoeverElseLeaves) {
  constexpr unsigned kClients = 64;
  std::vector<std::string> alone(kClients);
  {
    EngineOptions one = VeriCacheOptions("none", 1.0, 1);
    one.policy = Policy::kFull;
    const Served served(one);
    for (unsigned i = 0; i < kClients; ++i) {
      alone[i] = TextOf(served.Post(Path(i), Body(i)));
    }
  }
  const Served served(Scarce());
  std::atomic<int> left{0};
  std::vector<std::thread> clients;
  for (unsigned i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      if (i % 3 == 1) {  // leaves after some bytes, or before any came
        std::mt19937 random(i);
        const std::size_t most = random() % 2000;
        httplib::Client client = served.Client();
        Json body = Body(i);
        body["stream"] = i % 2 == 0;
        body["max_tokens"] = 40;
        if (i % 2 == 0) {
          std::size_t bytes = 0;
          client.Post(Path(i), httplib::Headers{}, body.dump(), "application/json",
                      [&](const char*, std::size_t size) { return (bytes += size) <= most; });
        } else {
          client.set_read_timeout(0, static_cast<time_t>(random() % 100'000));
          client.Post(Path(i), body.dump(), "application/json");
        }
        ++left;
      } else if (i % 2 == 0) {
        EXPECT_EQ(TextOf(served.Stream(Path(i), Body(i))), alone[i]) << i;
      } else {
        EXPECT_EQ(TextOf(served.Post(Path(i), Body(i))), alone[i]) << i;
      }
    });
  }
  for (std::thread& client : clients) {
    client.join();
  }
  EXPECT_GT(left, 15);
  EXPECT_TRUE(served.BecomesEmpty(20)) << "no stuck request";
  for (const char* kind : {"resident", "transient", "in_place"}) {
    EXPECT_EQ(served.Metric("vericache_cache_bytes{kind=\"" + std::string(kind) + "\"}"), 0)
        << kind;
  }
  EXPECT_GT(served.Metric("vericache_request_success_total{finished_reason=\"abort\"}"), 0);
  EXPECT_GT(served.Metric("vericache_reloads_total"), 0);
}

TEST(ServerLoad, ClientThatLeavesIsForgottenAtOnce) {
  EngineOptions options = VeriCacheOptions("kivi4", 1.0, 8);
  options.link_bandwidth = 1e6;  // an answer takes minutes
  const Served served(options);
  for (const bool stream : {false, true}) {
    httplib::Client client = served.Client();
    client.set_read_timeout(0, 100'000);
    EXPECT_FALSE(client.Post(
        "/v1/completions",
        Json({{"prompt", std::string(300, 'x')}, {"max_tokens", 200}, {"stream", stream}}).dump(),
        "application/json"));
    EXPECT_TRUE(served.BecomesEmpty(2));
  }
}

TEST(ServerLoad, FullQueueRefusesAndLateAnswersEnd) {
  EngineOptions options = VeriCacheOptions("kivi4", 1.0, 8);
  options.link_bandwidth = 1e6;
  ServerOptions server;
  server.queue = 1;
  server.deadline = std::chrono::seconds(1);
  const Served served(options, server);
  const Json slow = {{"prompt", std::string(300, 'x')}, {"max_tokens", 200}};
  std::vector<std::thread> clients;
  for (int i = 0; i < 2; ++i) {
    clients.emplace_back([&] {
      EXPECT_EQ(served.Post("/v1/completions", slow, 504)["error"]["code"], "deadline_exceeded");
    });
  }
  while (served.Metric("vericache_num_requests_waiting") +
             served.Metric("vericache_num_requests_running") <
         2) {
  }
  const auto refused = served.Client().Post("/v1/completions", slow.dump(), "application/json");
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 429);
  EXPECT_GE(std::stoi(refused->get_header_value("Retry-After")), 1);
  EXPECT_EQ(Json::parse(refused->body)["error"]["code"], "queue_full");
  EXPECT_EQ(served.Metric("vericache_requests_refused_total"), 1);
  for (std::thread& client : clients) {
    client.join();
  }
  EXPECT_EQ(Json::parse(served.Client().Get("/health")->body)["status"], "ok");
  EXPECT_TRUE(served.BecomesEmpty(5));
  Json more = slow;
  more["n"] = 3;
  EXPECT_EQ(served.Post("/v1/completions", more, 400)["error"]["param"], "n");
}

// A connection of our own, to send what no client would.
class RawClient {
 public:
  explicit RawClient(int port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    // Longer than the server waits.
    const timeval patience{.tv_sec = 8, .tv_usec = 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~RawClient() { close(socket_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void Send(const std::string& text) const {
    send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
  }
  // What comes until the server closes the connection, which it must.
  std::string Rest() const {
    std::string text;
    std::string buffer(4096, '\0');
    for (ssize_t size = 1; size > 0;) {
      size = recv(socket_, buffer.data(), buffer.size(), 0);
      EXPECT_TRUE(size >= 0 || errno == ECONNRESET) << "it is not closed";
      text.append(buffer, 0, static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
    }
    return text;
  }

 private:
  int socket_;
};

TEST(ServerLoad, SlowAndMalformedClientsDoNotHoldOthersUp) {
  ServerOptions options;
  options.read_timeout = std::chrono::seconds(1);
  const Served served(VeriCacheOptions("kivi4", 1.0, 8), options);
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n";
  std::vector<std::unique_ptr<RawClient>> slow;
  for (int i = 0; i < 40; ++i) {
    slow.push_back(std::make_unique<RawClient>(served.port()));
    slow.back()->Send(i % 2 == 0 ? "POST /v1/comple" : head + "Content-Length: 1000\r\n\r\n{\"pro");
  }
  const Json body = {{"prompt", "x"}, {"max_tokens", 4}};
  EXPECT_EQ(served.Post("/v1/completions", body)["usage"]["completion_tokens"], 4);
  for (const auto& client : slow) {
    const std::string answer = client->Rest();  // and it is closed
    EXPECT_TRUE(answer.empty() || answer.starts_with("HTTP/1.1 4")) << answer;
  }
  std::vector<std::unique_ptr<RawClient>> malformed;
  for (const std::string& text :
       {std::string("nonsense\r\n\r\n"), std::string("\0\xff\xfe\r\n\r\n", 7),
        "GET /" + std::string(20'000, 'x') + " HTTP/1.1\r\n\r\n",
        head + "X: " + std::string(100'000, 'x') + "\r\n\r\n",
        head + "Content-Length: -5\r\n\r\n{}", head + "Content-Length: 99999999999\r\n\r\n{}",
        head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    malformed.push_back(std::make_unique<RawClient>(served.port()));
    malformed.back()->Send(text);
  }
  for (const auto& client : malformed) {
    const std::string answer = client->Rest();
    EXPECT_TRUE(answer.empty() || answer.starts_with("HTTP/1.1 4")) << answer.substr(0, 200);
  }
  EXPECT_EQ(served.Post("/v1/completions", body)["usage"]["completion_tokens"], 4);
  EXPECT_TRUE(served.BecomesEmpty(5));
}

// Who sends a byte now and then is never late by the read timeout; more of them than the server has
// threads hold others up no longer than a request may take to be sent.
TEST(ServerLoad, ClientsThatSendByteByByteDoNotHoldOthersUp) {
  ServerOptions options;
  options.queue = 0;  // so there are 65 threads
  options.request_timeout = std::chrono::seconds(2);
  const Served served(VeriCacheOptions("kivi4", 1.0, 8), options);
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n";
  std::vector<std::unique_ptr<RawClient>> slow;
  for (int i = 0; i < 70; ++i) {
    slow.push_back(std::make_unique<RawClient>(served.port()));
    slow.back()->Send(i % 2 == 0 ? head + "X: " : head + "Content-Length: 5000\r\n\r\n");
  }
  std::atomic<bool> over{false};
  std::thread sender([&] {
    while (!over) {
      for (const auto& client : slow) {
        client->Send("x");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
  const auto answer = served.Client().Get("/health");
  EXPECT_TRUE(answer && answer->status == 200);
  over = true;
  sender.join();
}

}  // namespace
}  // namespace vericache
