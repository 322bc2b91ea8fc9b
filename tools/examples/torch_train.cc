// Trains a small network in C++ on LibTorch, three steps, with vramledger as its allocator: libtorch_train TRACE
#include <torch/torch.h>

#include <iostream>
#include <string>

#include "vramledger/phase_scope.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: libtorch_train TRACE\n";
    return 2;
  }
  if (const std::string error = vramledger::Install(argv[1]); !error.empty()) {
    std::cerr << "libtorch_train: " << error << "\n";
    return 1;
  }
  torch::nn::Sequential model(torch::nn::Linear(1024, 4096), torch::nn::ReLU(), torch::nn::Linear(4096, 1024));
  model->to(torch::kCUDA);
  for (const auto& parameter : model->named_parameters()) {
    const auto& storage = parameter.value().storage();
    vramledger::Name(storage.mutable_data(), vramledger::StorageRole::kParameter, parameter.key().c_str(),
                     storage.nbytes());
  }
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-3));
  for (int step = 0; step < 3; ++step) {
    torch::Tensor output;
    {
      const vramledger::ModuleScope scope("model");
      output = model->forward(torch::randn({64, 1024}, torch::kCUDA));
    }
    output.sum().backward();
    {
      const vramledger::PhaseScope scope(vramledger::ScopePhase::kOptimizer, "Adam");
      optimizer.step();
    }
    vramledger::StepDone("Adam");
    const vramledger::PhaseScope scope(vramledger::ScopePhase::kZeroGrad);
    optimizer.zero_grad();
  }
  std::cout << "trained 3 steps\n";
}
