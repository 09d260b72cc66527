// Who this process is and where its peers meet, from the launcher's variables. Set-up only. Pure
// but for the environment, which it reads through env.hpp.
#include "m2n/launch.hpp"

#include <array>
#include <charconv>
#include <limits>
#include <optional>

#include "transport/env.hpp"
#include "transport/hmac.hpp"
#include "transport/store_common.hpp"
#include "transport/store_job.hpp"
#include "transport/text.hpp"

namespace m2n {
namespace {

using namespace transport;

constexpr std::string_view job_directory_prefix = "m2n-job-";
constexpr std::chrono::milliseconds standard_start_timeout{60000};

Status refuse_variable(const char* name, std::string actual, std::string allowed) {
  return refuse({"detect_launch", name, std::move(actual), std::move(allowed), -1, name});
}

// One launcher's names for the same three numbers, in the order of their precedence.
struct Family {
  const char* source;
  const char* rank;
  const char* size;
  const char* local_rank;
};
constexpr std::array<Family, 4> families{
    Family{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    Family{"open-mpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
           "OMPI_COMM_WORLD_LOCAL_RANK"},
    Family{"pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    Family{"pmi", "PMIX_RANK", nullptr, nullptr},
};

struct Reading {
  const Family* family = nullptr;
  const char* name = nullptr;
  std::uint32_t value = 0;
  std::string text() const { return std::string{name} + " = " + std::to_string(value); }
};

Result<std::uint32_t> parse_number(const char* name, const std::string& text, std::uint32_t low,
                                   std::uint32_t high) {
  std::uint32_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc{} && stop == end && value >= low && value <= high) return value;
  return refuse_variable(name, '"' + text + '"',
                         std::to_string(low) + ".." + std::to_string(high) + ", digits only");
}

// All variables that name the same number; they must agree. The first one counts.
Result<std::optional<Reading>> read_number(const char* Family::*member, std::uint32_t low) {
  constexpr std::uint32_t high = std::numeric_limits<std::int32_t>::max();
  std::optional<Reading> first;
  for (const Family& family : families) {
    const char* name = family.*member;
    const std::optional<std::string> text =
        name == nullptr ? std::nullopt : launcher_variable(name);
    if (!text) continue;
    Result<std::uint32_t> value = parse_number(name, *text, low, high);
    if (!value) return value.status();
    const Reading reading{&family, name, *value};
    if (!first) {
      first = reading;
    } else if (first->value != reading.value) {
      return refuse_variable(name, std::to_string(reading.value),
                             "the same as " + first->text() + ", or one of the two not set");
    }
  }
  return first;
}

// Slurm starts PMIx programs with a rank in PMIX_RANK and the size of the step beside it.
Result<std::optional<Reading>> read_size() {
  Result<std::optional<Reading>> size = read_number(&Family::size, 1);
  if (!size || *size || !launcher_variable("PMIX_RANK")) return size;
  constexpr const char* name = "SLURM_STEP_NUM_TASKS";
  const std::optional<std::string> text = launcher_variable(name);
  if (!text) return size;
  Result<std::uint32_t> value =
      parse_number(name, *text, 1, std::numeric_limits<std::int32_t>::max());
  if (!value) return value.status();
  return std::optional{Reading{&families[3], name, *value}};
}

Status fill_ranks(Launch& launch) {
  Result<std::optional<Reading>> rank = read_number(&Family::rank, 0);
  if (!rank) return rank.status();
  Result<std::optional<Reading>> size = read_size();
  if (!size) return size.status();
  Result<std::optional<Reading>> local_rank = read_number(&Family::local_rank, 0);
  if (!local_rank) return local_rank.status();
  if (!*rank && !*size) {
    return {Code::unavailable, Scope::group,
            "detect_launch: no launcher's variables are set, allowed: RANK and WORLD_SIZE (with "
            "MASTER_ADDR and MASTER_PORT, or M2N_STORE), or a start by mpirun"};
  }
  if (!*rank || !*size) {
    const Reading& have = *rank ? **rank : **size;
    const char* missing = *rank ? have.family->size : have.family->rank;
    return refuse_variable(missing == nullptr ? "WORLD_SIZE" : missing, "(not set)",
                           "a number, as " + have.text() + " is set");
  }
  if ((*rank)->value >= (*size)->value) {
    return refuse_variable((*rank)->name, std::to_string((*rank)->value),
                           "0.." + std::to_string((*size)->value - 1) + ", as " + (*size)->text());
  }
  if (*local_rank && (*local_rank)->value >= (*size)->value) {
    return refuse_variable((*local_rank)->name, std::to_string((*local_rank)->value),
                           "0.." + std::to_string((*size)->value - 1) + ", as " + (*size)->text());
  }
  launch.world_rank = (*rank)->value;
  launch.world_size = (*size)->value;
  // Without a word about hosts there is one.
  launch.local_rank = *local_rank ? (*local_rank)->value : launch.world_rank;
  launch.source = (*rank)->family->source;
  return {};
}

struct Address {
  std::string host;
  std::uint16_t port = 0;
};

// "HOST:PORT" or "[V6]:PORT"
Result<Address> parse_address(const char* name, const std::string& text) {
  const std::size_t colon = text.rfind(':');
  Address address;
  if (colon != std::string::npos) address.host = text.substr(0, colon);
  const bool bracketed =
      address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']';
  if (bracketed) address.host = address.host.substr(1, address.host.size() - 2);
  if (address.host.empty() || (!bracketed && address.host.find(':') != std::string::npos)) {
    return refuse_variable(name, "\"tcp://" + text + '"', "tcp://HOST:PORT or tcp://[IPV6]:PORT");
  }
  Result<std::uint32_t> port = parse_number(name, text.substr(colon + 1), 1, 65535);
  if (!port) return port.status();
  address.port = static_cast<std::uint16_t>(*port);
  return address;
}

std::string tcp_text(const std::string& host, std::uint32_t port) {
  const bool bracket = host.find(':') != std::string::npos;
  return "tcp://" + (bracket ? '[' + host + ']' : host) + ':' + std::to_string(port);
}

// MASTER_ADDR and MASTER_PORT, or nothing if neither is set.
Result<std::optional<std::string>> master_store() {
  const std::optional<std::string> host = launcher_variable("MASTER_ADDR");
  const std::optional<std::string> port_text = launcher_variable("MASTER_PORT");
  if (!host && !port_text) return std::optional<std::string>{};
  if (!host || host->empty()) {
    return refuse_variable("MASTER_ADDR", host ? "\"\"" : "(not set)",
                           "a host, as MASTER_PORT is set");
  }
  if (!port_text) {
    return refuse_variable("MASTER_PORT", "(not set)", "1..65535, as MASTER_ADDR is set");
  }
  Result<std::uint32_t> port = parse_number("MASTER_PORT", *port_text, 1, 65535);
  if (!port) return port.status();
  // There the launcher's own store listens at MASTER_PORT: ours takes the port beside it.
  if (launcher_variable("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    *port = *port == 65535 ? *port - 1 : *port + 1;
  }
  return std::optional{tcp_text(*host, *port)};
}

Status check_one_host(const Launch& launch) {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    const std::optional<std::string> text = launcher_variable(name);
    if (!text) continue;
    Result<std::uint32_t> value =
        parse_number(name, *text, 1, std::numeric_limits<std::int32_t>::max());
    if (!value) return value.status();
    if (*value != launch.world_size) {
      return refuse_variable(
          name, *text,
          std::to_string(launch.world_size) +
              " (all ranks on one host), or set MASTER_ADDR and MASTER_PORT, or M2N_STORE");
    }
  }
  return {};
}

// A directory that all ranks of this launch name alike, and no other launch does.
Result<std::string> job_directory(const char* rank_variable) {
  std::string identity;
  for (const char* name :
       {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri",
        "OMPI_MCA_orte_precondition_transports", "PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID"}) {
    identity += launcher_variable(name).value_or("") + '\n';
  }
  const std::optional<std::string> launcher = launcher_process(rank_variable);
  if (!launcher && identity.find_first_not_of('\n') == std::string::npos) {
    return refuse_variable("M2N_STORE", "(not set)",
                           "tcp://HOST:PORT or file:DIRECTORY, as the launcher cannot be found");
  }
  identity += launcher.value_or("");
  Result<Digest> digest = sha256(identity);
  if (!digest) return digest.status();
  std::string parent = launcher_variable("TMPDIR").value_or("/tmp");
  if (parent.empty() || parent.front() != '/') parent = "/tmp";
  return parent + '/' + std::string{job_directory_prefix} + hex(std::span{*digest}.first(16));
}

Status fill_store(Launch& launch, const Environment& environment) {
  if (environment.store) {
    if (environment.store->rfind("tcp://", 0) == 0) {
      Result<Address> address = parse_address("M2N_STORE", environment.store->substr(6));
      if (!address) return address.status();
    }
    launch.store = *environment.store;
    launch.source = "M2N_STORE";
    return {};
  }
  Result<std::optional<std::string>> master = master_store();
  if (!master) return master.status();
  if (*master) {
    launch.store = **master;
    return {};
  }
  for (const Family& family : families) {
    if (&family == &families[0] || !launcher_variable(family.rank)) continue;
    if (Status status = check_one_host(launch); !status) return status;
    Result<std::string> directory = job_directory(family.rank);
    if (!directory) return directory.status();
    launch.store = "file:" + *directory;
    return {};
  }
  return refuse_variable("MASTER_ADDR", "(not set)",
                         "the host of rank 0, with MASTER_PORT; or set M2N_STORE");
}

bool is_job_directory(const Launch& launch, const std::string& directory) {
  const std::string last = directory.substr(directory.rfind('/') + 1);
  return launch.source != "M2N_STORE" && last.rfind(job_directory_prefix, 0) == 0;
}

}  // namespace

Result<Launch> detect_launch() {
  Result<Environment> environment = read_environment();
  if (!environment) return environment.status();
  Launch launch;
  if (Status status = fill_ranks(launch); !status) return status;
  if (Status status = fill_store(launch, *environment); !status) return status;
  return launch;
}

Result<std::shared_ptr<Store>> open_store(const Launch& launch) {
  if (launch.world_rank >= launch.world_size) {
    return refuse({"open_store", "world_rank", std::to_string(launch.world_rank),
                   "less than world_size = " + std::to_string(launch.world_size),
                   static_cast<std::int32_t>(launch.world_rank), "Launch::world_rank"});
  }
  if (launch.store.rfind("file:", 0) == 0) {
    const std::string directory = launch.store.substr(5);
    if (!is_job_directory(launch, directory)) return make_file_store(directory);
    return open_job_store(directory, launch.world_rank, launch.world_size);
  }
  if (launch.store.rfind("tcp://", 0) != 0) {
    return refuse({"open_store", "store", '"' + launch.store + '"',
                   "tcp://HOST:PORT or file:DIRECTORY",
                   static_cast<std::int32_t>(launch.world_rank), "Launch::store"});
  }
  Result<Address> address = parse_address("M2N_STORE", launch.store.substr(6));
  if (!address) return address.status();
  Result<Environment> environment = read_environment();
  if (!environment) return environment.status();
  TcpStoreConfig config;
  config.host = address->host;
  config.port = address->port;
  config.server = launch.world_rank == 0;
  config.start_timeout = environment->start_timeout.value_or(standard_start_timeout);
  return make_tcp_store(config);
}

}  // namespace m2n
