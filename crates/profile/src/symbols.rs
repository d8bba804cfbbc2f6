//! Symbolization: names of the functions at an address, including inlined ones. The names come from
//! the debug information of the running binary (`/proc/self/exe`, which exists even if the file was
//! replaced) and from the symbol tables of loaded libraries. A packaged binary has only a symbol
//! table. Distributions install its debug information as a separate file with the same build id.
//! Without this file, inlined functions count as their callers.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use addr2line::Loader;
use object::{Object, ReadCache};

/// The running program's own file.
const OWN: &str = "/proc/self/exe";

/// Directory in which distributions install debug information, by build id.
const DEBUG_DIR: &str = "/usr/lib/debug/.build-id";

/// A file with executable mappings.
struct Module {
    path: String,
    /// Address of the file's first byte.
    base: u64,
    /// Executable address ranges.
    code: Vec<(u64, u64)>,
    loader: Option<Loader>,
}

/// A symbolizer with a cache.
pub(crate) struct Symbols {
    modules: Vec<Module>,
    /// Path of the program's own file.
    program: String,
    known: HashMap<u64, Rc<[Rc<str>]>>,
    names: HashMap<String, Rc<str>>,
}

impl Symbols {
    /// Creates a symbolizer for the current mappings of the process.
    pub(crate) fn of_this_process() -> Self {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let exe = std::fs::read_link("/proc/self/exe").unwrap_or_default();
        let program = exe.to_string_lossy().into_owned();
        let mut modules = modules(&maps);
        for module in &mut modules {
            let own = module.path == program;
            let file = if own { OWN } else { &module.path };
            let beside = debug_file(Path::new(file), Path::new(DEBUG_DIR)).filter(|_| own);
            let beside = beside.and_then(|file| Loader::new(file).ok());
            module.loader = beside.or_else(|| Loader::new(file).ok());
        }
        Self { modules, program, known: HashMap::new(), names: HashMap::new() }
    }

    /// Returns the functions at an address, innermost first; empty if the address is not code.
    pub(crate) fn at(&mut self, address: u64) -> Rc<[Rc<str>]> {
        if let Some(known) = self.known.get(&address) {
            return Rc::clone(known);
        }
        let found = self.find(address).into_iter().map(|name| self.intern(name)).collect();
        self.known.entry(address).insert_entry(found).get().clone()
    }

    /// Returns true if the program's functions have names. In a stripped program, functions have
    /// none.
    pub(crate) fn has_program_symbols(&mut self) -> bool {
        let own = crate::stack::learn_own_memory_layout as *const () as u64;
        self.at(own).first().is_some_and(|name| !name.starts_with('['))
    }

    fn intern(&mut self, name: String) -> Rc<str> {
        Rc::clone(self.names.entry(name).or_insert_with_key(|name| Rc::from(name.as_str())))
    }

    fn find(&self, address: u64) -> Vec<String> {
        let holds = |module: &&Module| {
            module.code.iter().any(|(begin, end)| (*begin..*end).contains(&address))
        };
        let Some(module) = self.modules.iter().find(holds) else { return Vec::new() };
        let offset = address.wrapping_sub(module.base);
        let names = module.loader.as_ref().map_or(Vec::new(), |loader| in_file(loader, offset));
        let path = (module.path == self.program).then_some(offset);
        if names.is_empty() { vec![fallback_name(&module.path, path)] } else { names }
    }
}

/// Returns a name for an address in a file without symbols: the file, because inner functions of
/// libraries are rarely of interest; for the program itself also the offset.
fn fallback_name(path: &str, offset: Option<u64>) -> String {
    let file = path.trim_end_matches(" (deleted)").rsplit('/').next().unwrap_or(path);
    match offset {
        // The kernel's own page already has a name in brackets.
        _ if file.starts_with('[') => file.to_owned(),
        None => format!("[{file}]"),
        Some(offset) => format!("[{file}+{offset:#x}]"),
    }
}

fn in_file(loader: &Loader, offset: u64) -> Vec<String> {
    let probe = loader.relative_address_base().wrapping_add(offset);
    let mut names = Vec::new();
    if let Ok(mut frames) = loader.find_frames(probe) {
        while let Ok(Some(frame)) = frames.next() {
            let function = frame.function.as_ref().and_then(|function| function.raw_name().ok());
            names.extend(function.map(|name| readable(&name)));
        }
    }
    if names.is_empty() {
        names.extend(loader.find_symbol(probe).map(readable));
    }
    names
}

/// Returns the file below `directory` that has the debug information of a program, if there is one.
fn debug_file(program: &Path, directory: &Path) -> Option<PathBuf> {
    let content = ReadCache::new(File::open(program).ok()?);
    let parsed = object::File::parse(&content).ok()?;
    let id = parsed.build_id().ok()??;
    let (first, rest) = id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    let file = directory.join(format!("{first:02x}")).join(rest + ".debug");
    file.exists().then_some(file)
}

/// Returns a symbol demangled and without the compiler's hash.
fn readable(symbol: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(symbol))
}

/// Parses the files with code in `/proc/self/maps`: `begin-end perms offset dev inode path`.
fn modules(maps: &str) -> Vec<Module> {
    let mut modules: Vec<Module> = Vec::new();
    for line in maps.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(range), Some(rights), Some(offset)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let path = fields.skip(2).collect::<Vec<_>>().join(" ");
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let parsed = range
            .split_once('-')
            .and_then(|(begin, end)| Some((hex(begin)?, hex(end)?, hex(offset)?)));
        let Some((begin, end, offset)) = parsed.filter(|_| !path.is_empty()) else { continue };
        // The first mapping of a file starts at its beginning.
        if modules.last().is_none_or(|last| last.path != path) {
            let base = begin.wrapping_sub(offset);
            modules.push(Module { path, base, code: Vec::new(), loader: None });
        }
        if rights.contains('x') {
            modules.last_mut().expect("just pushed").code.push((begin, end));
        }
    }
    modules.retain(|module| !module.code.is_empty());
    modules
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
        1000-2000 r--p 00000000 fe:00 12   /bin/x y\n\
        2000-3000 r-xp 00001000 fe:00 12   /bin/x y\n\
        3000-4000 rw-p 00002000 fe:00 12   /bin/x y\n\
        8000-9000 rw-p 00000000 00:00 0    [heap]\n\
        a000-b000 r-xp 00000000 00:00 0 \n\
        c000-d000 r-xp 00000000 00:00 0    [vdso]\n";

    #[test]
    fn memory_maps_are_parsed_into_modules() {
        let found = modules(MAPS);
        let seen: Vec<_> = found.iter().map(|m| (m.path.as_str(), m.base, &m.code[..])).collect();
        let expected: [(&str, u64, &[(u64, u64)]); 2] =
            [("/bin/x y", 0x1000, &[(0x2000, 0x3000)]), ("[vdso]", 0xc000, &[(0xc000, 0xd000)])];
        assert_eq!(seen, expected);
        assert_eq!(fallback_name("/bin/x y (deleted)", Some(0x20)), "[x y+0x20]");
        assert_eq!(fallback_name("/lib/libm.so.6", None), "[libm.so.6]");
        assert_eq!(fallback_name("[vdso]", None), "[vdso]");
    }

    #[test]
    fn debug_information_beside_the_program_is_found_by_its_id() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(debug_file(Path::new(OWN), directory.path()), None);
        let content = std::fs::read(OWN).unwrap();
        let id = object::File::parse(&*content).unwrap().build_id().unwrap().unwrap().to_vec();
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let file = directory.path().join(&id[..2]).join(format!("{}.debug", &id[2..]));
        std::fs::create_dir(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "").unwrap();
        assert_eq!(debug_file(Path::new(OWN), directory.path()), Some(file));
    }

    #[inline(never)]
    fn somewhere() -> u64 {
        let mut frames = [0; 4];
        assert!(crate::stack::capture(&mut frames) > 1);
        frames[0] as u64 - 1
    }

    #[test]
    fn the_caller_of_a_function_is_symbolized() {
        let mut symbols = Symbols::of_this_process();
        let names = symbols.at(somewhere());
        let own = "profile::symbols::tests::the_caller_of_a_function_is_symbolized";
        assert!(names.iter().any(|name| name.starts_with(own)), "{names:?}");
        assert!(symbols.at(16).is_empty());
        assert!(symbols.has_program_symbols());
        let libc_function = libc::getppid as *const () as u64;
        assert_eq!(&*symbols.at(libc_function)[0], "getppid");
    }
}
