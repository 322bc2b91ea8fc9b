"""Reads the dynamic symbols of a 64-bit little-endian ELF shared library. Standard library only."""

import struct
from typing import NamedTuple


class Symbol(NamedTuple):
    name: str
    version: str      # "" when the symbol has none
    defined: bool
    weak: bool
    function: bool


def _string(table, offset):
    return table[offset:table.index(b"\0", offset)].decode()


def dynamic_symbols(path):
    """Every named entry of .dynsym, in order. ValueError if PATH is not such a library."""
    with open(path, "rb") as file:
        data = file.read(64)
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is not a 64-bit little-endian ELF file")
        offset, = struct.unpack_from("<Q", data, 40)
        entry_size, count = struct.unpack_from("<HH", data, 58)
        file.seek(offset)
        raw = file.read(entry_size * count)
        sections = [struct.unpack_from("<IIQQQQIIQQ", raw, i * entry_size) for i in range(count)]

        def content(section):
            file.seek(section[4])
            return file.read(section[5])

        by_type = {section[1]: section for section in sections}
        dynsym = by_type.get(11)          # SHT_DYNSYM
        if dynsym is None:
            raise ValueError(f"{path} has no dynamic symbols")
        symbols, strings = content(dynsym), content(sections[dynsym[6]])
        versions = content(by_type[0x6FFFFFFF]) if 0x6FFFFFFF in by_type else b""
        names = {}
        for kind in (0x6FFFFFFD, 0x6FFFFFFE):  # version definitions, version needs
            if kind in by_type:
                table = by_type[kind]
                names.update(_versions(kind, content(table), content(sections[table[6]]), table[7]))
    result = []
    for i in range(len(symbols) // 24):
        name, info, _, section, _, _ = struct.unpack_from("<IBBHQQ", symbols, i * 24)
        text = _string(strings, name)
        if not text:
            continue
        index = struct.unpack_from("<H", versions, i * 2)[0] & 0x7FFF if versions else 0
        result.append(Symbol(text, names.get(index, ""), section != 0, info >> 4 == 2, info & 15 == 2))
    return result


def _versions(kind, data, strings, count):
    """Version index to version name, from .gnu.version_d or .gnu.version_r."""
    names, at = {}, 0
    for _ in range(count):
        if kind == 0x6FFFFFFD:
            _, flags, index, _, _, aux, following = struct.unpack_from("<HHHHIII", data, at)
            name, _ = struct.unpack_from("<II", data, at + aux)
            if not flags & 1:             # the base entry is the library's own name
                names[index] = _string(strings, name)
        else:
            _, aux_count, _, aux, following = struct.unpack_from("<HHIII", data, at)
            where = at + aux
            for _ in range(aux_count):
                _, _, index, name, aux_next = struct.unpack_from("<IHHII", data, where)
                names[index] = _string(strings, name)
                where += aux_next
        if not following:
            break
        at += following
    return names
