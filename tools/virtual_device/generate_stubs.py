#!/usr/bin/env python3
"""Writes what a stand-in library needs beside its hand-written functions: one weak stub for every function that the
real library exports, and the linker's version script. A hand-written function of the same name wins at link time, so
nobody keeps a list of what is written: in the finished library a weak symbol is a stub, a strong one is real.

    generate_stubs.py --site-packages DIR --list                    print the sonames of this wheel's libraries
    generate_stubs.py --site-packages DIR --architectures           print what its kernels were compiled for: 75,80,...
    generate_stubs.py --site-packages DIR --library SONAME --out DIR

The table of libraries is libraries.json.
"""

import argparse
import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from elf_symbols import dynamic_symbols  # noqa: E402


def load_layout(site_packages):
    """The row of libraries.json that fits the installed wheel, or None."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "libraries.json")) as file:
        table = json.load(file)
    for layout in table["layouts"]:
        if os.path.exists(os.path.join(site_packages, layout["detect"])):
            return layout
    return None


def architectures(layout, site_packages):
    """The compute capabilities this PyTorch was built for (75, 80, ...), from the text of torch.cuda.get_arch_list."""
    import mmap
    with open(os.path.join(site_packages, layout["architectures_in"]), "rb") as file, \
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = re.search(rb"sm_\d+( [a-z]+_\d+[a-z]*)+", data)
        return [int(n) for n in re.findall(r"sm_(\d+)", found.group().decode())] if found else []


def strip_comments(text):
    return re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", " ", text, flags=re.S))


def names_from_header(path, pattern):
    """Functions that a header declares, under the names its own #defines give them, and the plain names as well."""
    with open(path, errors="replace") as file:
        text = strip_comments(file.read())
    renamed = dict(re.findall(r"^\s*#\s*define\s+(cu[A-Z]\w*?)\s+(?:__CUDA_API_PT[DS][SZ]\()?(cu[A-Z]\w*_v\d+)\)?\s*$",
                              text, flags=re.M))
    declared = set(re.findall(pattern, text))
    return sorted(declared | set(renamed.values()) | set(renamed)), renamed


def prototypes(paths):
    """Function name to list of (type, name) of its parameters, as far as simple declarations go."""
    found = {}
    for path in paths:
        with open(path, errors="replace") as file:
            text = strip_comments(file.read())
        for name, parameters in re.findall(r"\b(cu[a-zA-Z]\w*)\s*\(([^(){};]*)\)\s*;", text):
            parsed = []
            for parameter in parameters.split(","):
                match = re.match(r"\s*(.*?)(\w+)\s*(\[\w*\])?\s*$", parameter, flags=re.S)
                if match:
                    kind = re.sub(r"\s+", " ", match.group(1)).strip()
                    parsed.append((kind + ("*" if match.group(3) else ""), match.group(2)))
            found[name] = parsed
    return found


def stub(name, library, parameters):
    """The C++ text of one weak stub."""
    weak = 'extern "C" __attribute__((weak, visibility("default"))) int ' + name
    for rule in library.get("rules", []):
        if not re.fullmatch(rule["name"], name):
            continue
        if rule["do"] == "unsupported":
            break
        if rule["do"] == "compute":      # the device would compute: nothing happens, but bytes may have changed
            return f"{weak}(void* handle) {{ return vd_compute(handle); }}"
        if rule["do"] == "success":
            return f"{weak}() {{ return 0; }}"
        if rule["do"] == "create":       # the handle's address goes to the first pointer parameter
            place = next((i for i, (kind, _) in enumerate(parameters) if kind.endswith("*")), 0)
            before = "".join("void*, " for _ in range(place))
            return f"{weak}({before}void** made) {{ return vd_create(made); }}"
        if rule["do"] == "sizes":        # every int* or size_t* parameter is a size in bytes to be answered
            body, arguments = "", []
            for i, (kind, _) in enumerate(parameters):
                if re.fullmatch(r"(int|size_t) ?\*", kind):
                    width = kind.replace("*", "").strip()
                    arguments.append(f"{width}* p{i}")
                    body += f" if (p{i} != nullptr) *p{i} = {rule['bytes']};"
                else:
                    arguments.append(f"{parameter_type(kind)} p{i}")
            if not body:
                break
            unused = "".join(f" (void)p{i};" for i in range(len(parameters)))
            nominal = weak.replace("weak,", 'weak, section("vd_nominal"),')
            return f"{nominal}({', '.join(arguments)}) {{{unused} VD_NOMINAL(\"{name}\");{body} return 0; }}"
    return f"VD_UNIMPLEMENTED({name})"


def forwards(library, names, site_packages):
    """Functions that need no device, handed to the real library with their own types: the text of a C++ file, and
    the names it holds."""
    rule = library.get("forward")
    if rule is None:
        return "", set()
    lines, done = ["// Made by generate_stubs.py. Functions that need no device go on to the real library.",
                   f"#include <{rule['include']}>", '#pragma GCC diagnostic ignored "-Wdeprecated-declarations"',
                   'extern "C" void* vd_real(const char* name);'], set()
    for path in library["prototypes"]:
        with open(os.path.join(site_packages, path), errors="replace") as file:
            text = strip_comments(file.read())
        for result, name, parameters in re.findall(rule["pattern"], text):
            parameters = re.sub(r"\s+", " ", parameters).strip()
            if name not in names or name in done or re.search(rule["not_if"], name + "(" + parameters):
                continue
            arguments = [] if parameters in ("", "void") else [
                re.search(r"(\w+)\s*(?:\[\w*\])*$", p.strip()).group(1) for p in parameters.split(",")]
            none = "return;" if result == "void" else f"return static_cast<{result}>({library['unsupported']});"
            if "*" in result:
                none = 'return "";'
            lines.append(
                f'extern "C" __attribute__((weak, visibility("default"))) {result} {name}({parameters}) {{\n'
                f'  static const auto real = reinterpret_cast<decltype(&{name})>(vd_real("{name}"));\n'
                f"  if (real == nullptr) {none}\n  return real({', '.join(arguments)});\n}}")
            done.add(name)
    return "\n".join(lines) + "\n", done


def jump(name, target):
    """A plain name goes on to the function that the header means by it, whatever its arguments."""
    return (f'asm(".text\\n.weak {name}\\n.type {name}, @function\\n{name}:\\n" VD_JUMP " {target}" VD_PLT "\\n'
            f'.size {name}, .-{name}\\n");')


def parameter_type(kind):
    """A type that is passed the same way as KIND: what matters is the register class."""
    if kind.endswith("*"):
        return "void*"
    if kind.replace("const ", "").strip() in ("float", "double"):
        return kind.replace("const ", "").strip()
    if "omplex" in kind:
        return "double"
    return "long"


def generate(library, site_packages, out):
    renamed = {}
    if "header" in library:
        names, renamed = names_from_header(os.path.join(site_packages, library["header"]), library["header_pattern"])
        version = library.get("version", "")
        versions = {name: version for name in names}
    else:
        exported = [s for s in dynamic_symbols(os.path.join(site_packages, library["file"])) if s.defined and s.function]
        versions = {s.name: s.version for s in exported}
    parameters = prototypes([os.path.join(site_packages, h) for h in library.get("prototypes", [])])
    os.makedirs(out, exist_ok=True)
    lines = [
        "// Made by generate_stubs.py. One weak function for each that the real library exports.",
        "#include <atomic>",
        "#include <cstddef>",
        '#include "tools/virtual_device/core/state.h"',
        'extern "C" int vd_compute(void* handle);',
        'extern "C" int vd_create(void** made);',
        "#if defined(__aarch64__)",
        '#define VD_JUMP "b"',
        '#define VD_PLT ""',
        "#else",
        '#define VD_JUMP "jmp"',
        '#define VD_PLT "@PLT"',
        "#endif",
        "#define VD_UNIMPLEMENTED(name) \\",
        '  extern "C" __attribute__((weak, visibility("default"), section("vd_unimplemented"))) int name() { \\',
        "    static std::atomic<bool> said{false}; \\",
        f"    return vd::ReportUnimplemented(#name, &said, {library['unsupported']}); \\",
        "  }",
    ]
    absent = set(library.get("absent", []))
    forwarded, skip = forwards(library, versions, site_packages)
    write(os.path.join(out, "forwards.cc"), forwarded)
    for name in sorted(versions):
        if name in renamed:
            lines.append(jump(name, renamed[name]))
        elif name not in absent and name not in skip:
            lines.append(stub(name, library, parameters.get(name, [])))
    write(os.path.join(out, "stubs.cc"), "\n".join(lines) + "\n")
    nodes = {}
    for name, node in versions.items():
        if name not in absent:
            nodes.setdefault(node, []).append(name)
    script = ""
    if set(nodes) == {""}:
        script = "{\n  global:\n" + "".join(f"    {n};\n" for n in sorted(nodes[""])) + "  local: *;\n};\n"
    else:
        nodes.setdefault(next(n for n in nodes if n), []).extend(nodes.pop("", []))
        for i, (node, names) in enumerate(sorted(nodes.items())):
            local = "  local: *;\n" if i == 0 else ""
            script += f"{node} {{\n  global:\n" + "".join(f"    {n};\n" for n in sorted(names)) + local + "};\n"
    write(os.path.join(out, "version.map"), script)


def write(path, text):
    """Leaves the file's time alone when nothing changed, so that nothing is rebuilt."""
    try:
        with open(path) as file:
            if file.read() == text:
                return
    except OSError:
        pass
    with open(path, "w") as file:
        file.write(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site-packages", required=True)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--architectures", action="store_true")
    parser.add_argument("--library")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    layout = load_layout(arguments.site_packages)
    if layout is None:
        print("no supported PyTorch CUDA wheel in " + arguments.site_packages, file=sys.stderr)
        return 3
    if arguments.architectures:
        print(",".join(map(str, architectures(layout, arguments.site_packages))))
        return 0
    if arguments.list:
        print(";".join(library["soname"] for library in layout["libraries"]))
        return 0
    for library in layout["libraries"]:
        if library["soname"] == arguments.library:
            generate(library, arguments.site_packages, arguments.out)
            return 0
    print(f"{arguments.library} is not in the table for this wheel", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
