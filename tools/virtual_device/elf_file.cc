#include "tools/virtual_device/elf_file.h"

#include <elf.h>

#include <cstring>
#include <fstream>
#include <stdexcept>

namespace vd {
namespace {

class Reader {
 public:
  explicit Reader(const std::string& file) : name_(file), in_(file, std::ios::binary) {
    if (!in_) throw std::runtime_error("cannot read " + file);
  }
  void Read(uint64_t offset, void* to, size_t size) {
    in_.seekg(static_cast<std::streamoff>(offset));
    if (!in_.read(static_cast<char*>(to), static_cast<std::streamsize>(size))) {
      throw std::runtime_error(name_ + " ends early");
    }
  }
  std::string Section(const Elf64_Shdr& header) {
    if (header.sh_size > (uint64_t{1} << 30)) throw std::runtime_error(name_ + " has an implausible symbol table");
    std::string content(header.sh_size, '\0');
    if (header.sh_type != SHT_NOBITS && !content.empty()) Read(header.sh_offset, content.data(), content.size());
    return content;
  }

 private:
  std::string name_;
  std::ifstream in_;
};

std::string Text(const std::string& table, size_t at) { return at < table.size() ? table.c_str() + at : ""; }

}  // namespace

std::vector<ElfSymbol> ReadElfSymbols(const std::string& file) {
  Reader in(file);
  Elf64_Ehdr header;
  in.Read(0, &header, sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_shentsize != sizeof(Elf64_Shdr)) {
    throw std::runtime_error(file + " is not a 64-bit little-endian ELF file");
  }
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  in.Read(header.e_shoff, sections.data(), sections.size() * sizeof(Elf64_Shdr));
  const std::string section_names = header.e_shstrndx < sections.size() ? in.Section(sections[header.e_shstrndx]) : "";
  std::vector<ElfSymbol> symbols;
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_DYNSYM || section.sh_link >= sections.size()) continue;
    const std::string table = in.Section(section);
    const std::string names = in.Section(sections[section.sh_link]);
    for (size_t at = 0; at + sizeof(Elf64_Sym) <= table.size(); at += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol;
      std::memcpy(&symbol, table.data() + at, sizeof symbol);
      ElfSymbol out;
      out.name = Text(names, symbol.st_name);
      if (out.name.empty()) continue;
      out.defined = symbol.st_shndx != SHN_UNDEF;
      if (out.defined && symbol.st_shndx < sections.size()) out.section = Text(section_names, sections[symbol.st_shndx].sh_name);
      symbols.push_back(std::move(out));
    }
  }
  return symbols;
}

}  // namespace vd
