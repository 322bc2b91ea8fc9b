// vramledger: the offline tool. One file per command; this one only parses and maps failures to exit codes.
#include <cstdio>
#include <exception>

#include "tools/cli/command.h"

namespace vramledger::cli {

void RequireReadable(const absl::Status& status) {
  if (!status.ok()) throw Failure{kExitUnreadable, std::string(status.message())};
}

namespace {

bool IsCommand(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == name) return true;
  }
  return false;
}

int Main(int argc, char** argv) {
  CLI::App app{"vramledger: where the GPU memory of a PyTorch training run went, and what would make it fit"};
  app.set_version_flag("--version", std::string("vramledger ") + VRAMLEDGER_VERSION);
  app.require_subcommand(1);
  app.footer("Exit codes: 0 done, 1 a check failed, 2 wrong use, 3 unreadable input.");
  RegisterReport(app);
  RegisterReconcile(app);
  RegisterEstimate(app);
  RegisterAdvise(app);
  RegisterImport(app);
  RegisterExport(app);
  RegisterCheck(app);
  RegisterDryrun(app);
  RegisterReplay(app);
  RegisterDoctor(app);
  try {
    if (argc > 1 && argv[1][0] != '-' && argv[1][0] != '\0' && !IsCommand(app, argv[1]))
      throw Failure{kExitUsage, "no command \"" + std::string(argv[1]) + "\"; vramledger --help lists them"};
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);
    return code == 0 ? kExitOk : kExitUsage;
  } catch (const Failure& f) {
    std::fprintf(stderr, "vramledger: %s\n", f.sentence.c_str());
    return f.exit_code;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "vramledger: %s\n", e.what());
    return kExitUnreadable;
  }
  return kExitOk;
}

}  // namespace
}  // namespace vramledger::cli

int main(int argc, char** argv) { return vramledger::cli::Main(argc, argv); }
