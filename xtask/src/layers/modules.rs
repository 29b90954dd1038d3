//! Which module of a crate imports which beside it, read from its sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use super::tokens::{Token, tokens};

/// The modules of a crate, or those below one of its modules.
#[derive(Debug, Default)]
pub(super) struct Modules {
    pub(super) names: BTreeSet<String>,
    pub(super) imports: Vec<Import>,
}

/// A crate's modules by the module that they are below: the crate's root has an empty name, the modules of `a::b` are at `a::b`.
pub(super) type Levels = BTreeMap<String, Modules>;

/// A path in one module, or below it, that leads to another beside it.
#[derive(Debug)]
pub(super) struct Import {
    pub(super) from: String,
    pub(super) to: String,
    place: Place,
    path: String,
}

impl fmt::Display for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            from,
            to,
            place,
            path,
        } = self;
        write!(f, "{from} -> {to}  {place}  {path}")
    }
}

#[derive(Debug, Clone)]
struct Place {
    file: PathBuf,
    line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// Reads all modules of the crate with this root file, as it is compiled without tests. `read` gives a file's text, or
/// none where there is no such file.
///
/// # Errors
/// When a module's file isn't found, or names come in by a `*` that cannot be followed.
pub(super) fn levels(
    root: &Path,
    read: &dyn Fn(&Path) -> Option<String>,
) -> Result<Levels, String> {
    let mut reader = Reader {
        read,
        folder: root.parent().unwrap_or(Path::new("")),
        modules: BTreeSet::from([Vec::new()]),
        imported: BTreeMap::new(),
        found: Vec::new(),
    };
    let source = read(root).ok_or_else(|| format!("{} is not there", root.display()))?;
    reader.scan(root, &source, Vec::new())?;
    reader.resolve()
}

const STAR: &str = "name what is imported, instead of `*`";

/// An imported path, from the crate's root on.
struct Found {
    /// The module that imports it.
    from: Vec<String>,
    path: Vec<String>,
    place: Place,
}

struct Reader<'a> {
    read: &'a dyn Fn(&Path) -> Option<String>,
    /// That of the root file.
    folder: &'a Path,
    /// All modules by their paths, the root among them.
    modules: BTreeSet<Vec<String>>,
    /// Names that a module imports, behind its own path, and where they lead.
    imported: BTreeMap<Vec<String>, Vec<String>>,
    found: Vec<Found>,
}

impl Reader<'_> {
    /// Reads a file, which is that of `module`, and those of the modules below it.
    fn scan(&mut self, file: &Path, source: &str, mut module: Vec<String>) -> Result<(), String> {
        let tokens = tokens(source);
        let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
        let mut depth = 0;
        // Depths at which modules without a file of their own begin.
        let mut inline = Vec::new();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let place = || Place {
                file: file.to_owned(),
                line: token.line,
            };
            at += 1;
            match token.text {
                "{" => depth += 1,
                "}" => {
                    depth -= 1;
                    if inline.last() == Some(&depth) {
                        inline.pop();
                        module.pop();
                    }
                }
                "mod" if matches!(text(at + 1), ";" | "{") => {
                    module.push(text(at).to_owned());
                    self.modules.insert(module.clone());
                    if text(at + 1) == "{" {
                        inline.push(depth);
                    } else {
                        self.scan_below(&module, &place())?;
                        module.pop();
                    }
                    at += 1;
                }
                // `use<'a>` says what a type captures.
                "use" if text(at) != "<" => {
                    let mut paths = Vec::new();
                    at += tree(&tokens[at..], &[], &mut paths);
                    for (path, name) in paths {
                        self.note(&path, Some(name), &module, place());
                    }
                }
                "crate" | "self" | "super" if text(at) == "::" => {
                    let mut path = vec![token.text];
                    while text(at) == "::" && tokens.get(at + 1).is_some_and(Token::is_word) {
                        path.push(text(at + 1));
                        at += 2;
                    }
                    self.note(&path, None, &module, place());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads the file of a module, either `a.rs` or `a/mod.rs`.
    fn scan_below(&mut self, module: &[String], place: &Place) -> Result<(), String> {
        let path = self.folder.join(module.iter().collect::<PathBuf>());
        for file in [path.with_extension("rs"), path.join("mod.rs")] {
            if let Some(source) = (self.read)(&file) {
                return self.scan(&file, &source, module.to_owned());
            }
        }
        Err(format!("{place}: mod {} has no file", module.join("::")))
    }

    /// Keeps a path that begins inside the crate, and the name that it gets in its module.
    fn note(&mut self, path: &[&str], name: Option<&str>, module: &[String], place: Place) {
        let path = from_root(path, module);
        if let Some(name) = name.filter(|&name| name != "*") {
            let mut here = module.to_owned();
            here.push(name.to_owned());
            // Another crate's name looks like that of a module here, and may be that of an item in it.
            if !path.starts_with(&here) {
                self.imported.insert(here, path.clone());
            }
        }
        self.found.push(Found {
            from: module.to_owned(),
            path,
            place,
        });
    }

    /// Finds the module that each path leads to, through what other modules re-export, and sorts the imports by the
    /// module under which both ends lie.
    fn resolve(self) -> Result<Levels, String> {
        let mut levels = Levels::new();
        for module in &self.modules {
            if let Some((name, above)) = module.split_last() {
                let level = levels.entry(above.join("::")).or_default();
                level.names.insert(name.clone());
            }
        }
        for Found { from, path, place } in &self.found {
            let to = self.module_of(path);
            let both = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            // Whose name it then is that somebody imports from there cannot be told.
            let is_all_of_module = path.last().is_some_and(|word| word == "*")
                && self.modules.contains(&path[..path.len() - 1]);
            if is_all_of_module && both == from.len().min(to.len()) {
                return Err(format!("{place}: {STAR}"));
            }
            if let (Some(ours), Some(theirs)) = (from.get(both), to.get(both)) {
                let level = levels.entry(from[..both].join("::")).or_default();
                level.imports.push(Import {
                    from: ours.clone(),
                    to: theirs.clone(),
                    place: place.clone(),
                    path: path.join("::"),
                });
            }
        }
        Ok(levels)
    }

    /// The module in which a path's end is defined.
    fn module_of(&self, path: &[String]) -> Vec<String> {
        let mut path = path.to_owned();
        // A re-export may lead to another one; a circle of them would not compile.
        for _ in 0..=self.imported.len() {
            let is_module = |len: &usize| self.modules.contains(&path[..*len]);
            let module = (0..=path.len()).rev().find(is_module).unwrap_or(0);
            let Some(to) = path.get(..=module).and_then(|name| self.imported.get(name)) else {
                path.truncate(module);
                return path;
            };
            path = [to, &path[module + 1..]].concat();
        }
        Vec::new()
    }
}

/// The path from the crate's root on. That of another crate looks like one below `module`, where it leads nowhere.
fn from_root(path: &[&str], module: &[String]) -> Vec<String> {
    let mut base = module.to_owned();
    let mut rest = path;
    match path.first() {
        Some(&"crate") => {
            base.clear();
            rest = &rest[1..];
        }
        Some(&"self") => rest = &rest[1..],
        _ => {}
    }
    while rest.first() == Some(&"super") {
        base.pop();
        rest = &rest[1..];
    }
    base.extend(rest.iter().map(|&word| word.to_owned()));
    base
}

/// Reads a tree of imports, after `use` or inside one, into paths and the names that they get. The number of its tokens.
fn tree<'a>(
    tokens: &[Token<'a>],
    prefix: &[&'a str],
    paths: &mut Vec<(Vec<&'a str>, &'a str)>,
) -> usize {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    let mut path = prefix.to_vec();
    let mut at = 0;
    loop {
        match text(at) {
            "{" => {
                at += 1;
                while !matches!(text(at), "}" | "") {
                    match text(at) {
                        "," => at += 1,
                        _ => at += tree(&tokens[at..], &path, paths).max(1),
                    }
                }
                return at + 1;
            }
            // At the beginning it leads to another crate.
            "::" if path.is_empty() => path.push(""),
            "::" => {}
            word if word == "*" || tokens.get(at).is_some_and(Token::is_word) => {
                match word {
                    "self" if !path.is_empty() => {}
                    _ => path.push(word),
                }
                if text(at + 1) != "::" {
                    let (name, len) = match text(at + 1) {
                        "as" => (text(at + 2), at + 3),
                        _ => (path.last().copied().unwrap_or_default(), at + 1),
                    };
                    paths.push((path, name));
                    return len;
                }
            }
            _ => return at,
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The imports between the modules of a crate with these files.
    fn imports(files: &[(&str, &str)]) -> Result<Vec<String>, String> {
        imports_below("", files)
    }

    /// The imports between the modules below one of its modules.
    fn imports_below(above: &str, files: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let read = |path: &Path| {
            let file = files.iter().find(|(name, _)| Path::new(name) == path)?;
            Some(file.1.to_owned())
        };
        let levels = levels(Path::new("src/lib.rs"), &read)?;
        let level = levels.get(above);
        let imports = level.iter().flat_map(|modules| &modules.imports);
        Ok(imports.map(Import::to_string).collect())
    }

    #[test]
    fn grouped_imports_are_resolved() {
        let found = imports(&[
            ("src/lib.rs", "mod a; mod b; mod c; mod d;"),
            (
                "src/a.rs",
                "use std::fmt;\nuse crate::{b::{self, x::{Y, Z as W}}, c::*,\n d};",
            ),
            ("src/b.rs", "mod x { pub struct Y; }"),
            ("src/c/mod.rs", ""),
            ("src/d.rs", "use ::c::X; use a::Y; use c;"),
        ]);
        let expected = [
            "a -> b  src/a.rs:2  b",
            "a -> b  src/a.rs:2  b::x::Y",
            "a -> b  src/a.rs:2  b::x::Z",
            "a -> c  src/a.rs:2  c::*",
            "a -> d  src/a.rs:2  d",
        ];
        assert_eq!(found.unwrap(), expected);
    }

    #[test]
    fn super_and_self_lead_from_where_they_stand() {
        let found = imports(&[
            ("src/lib.rs", "mod a; mod b; mod c;"),
            ("src/a.rs", "mod inner; use super::b::X;"),
            (
                "src/a/inner.rs",
                "use super::y; use super::super::c;\n\
                 mod deep { use super::super::super::b; use super::x; use self::z; }\n\
                 fn f(x: super::super::c::C) { self::g(); }",
            ),
            ("src/b.rs", ""),
            ("src/c.rs", ""),
        ]);
        let expected = [
            "a -> c  src/a/inner.rs:1  c",
            "a -> b  src/a/inner.rs:2  b",
            "a -> c  src/a/inner.rs:3  c::C",
            "a -> b  src/a.rs:1  b::X",
        ];
        assert_eq!(found.unwrap(), expected);
    }

    #[test]
    fn paths_in_expressions_are_imports() {
        let found = imports(&[
            ("src/lib.rs", "mod a; mod b; mod c; pub fn root() {}"),
            (
                "src/a.rs",
                "// crate::c::x()\nfn f() -> u8 { crate::root(); crate::b::g::<u8>(\"crate::c::x\") }",
            ),
            ("src/b.rs", "macro_rules! m { () => { $crate::a::f() } }"),
            ("src/c.rs", "pub(crate) fn h(x: impl A + use<'_>) {}"),
        ]);
        let expected = ["a -> b  src/a.rs:2  b::g", "b -> a  src/b.rs:1  a::f"];
        assert_eq!(found.unwrap(), expected);
    }

    #[test]
    fn what_the_root_re_exports_is_of_its_module() {
        let found = imports(&[
            (
                "src/lib.rs",
                "mod a; mod b; mod c;\npub use a::{A, Other as Renamed}; pub use self::b::B;\n\
                 use std::fmt::Debug;",
            ),
            ("src/a.rs", ""),
            ("src/b.rs", "use crate::A;"),
            ("src/c.rs", "use super::{Debug, Renamed, B, Unknown};"),
        ]);
        let expected = [
            "b -> a  src/b.rs:1  A",
            "c -> a  src/c.rs:1  Renamed",
            "c -> b  src/c.rs:1  B",
        ];
        assert_eq!(found.unwrap(), expected);
    }

    #[test]
    fn imports_at_depth_two_are_those_between_what_is_beside() {
        let files = [
            ("src/lib.rs", "mod a; mod b; pub use a::Outer;"),
            (
                "src/a.rs",
                "mod x; mod y; mod z;\npub use self::{y::{Y as Renamed}, z::Z};\npub struct Outer; pub struct Own;",
            ),
            (
                "src/a/x.rs",
                "mod deep;\nuse super::{Own, Renamed};\nuse crate::b;",
            ),
            ("src/a/x/deep.rs", "fn f() {\n    crate::a::Z::new();\n}"),
            (
                "src/a/y.rs",
                "use super::x::{self, deep};\nuse crate::Outer;",
            ),
            (
                "src/a/z.rs",
                "use self::inner::I; mod inner { use super::super::Z; }",
            ),
            ("src/b.rs", ""),
        ];
        let expected = [
            "x -> z  src/a/x/deep.rs:2  a::Z::new",
            "x -> y  src/a/x.rs:2  a::Renamed",
            "y -> x  src/a/y.rs:1  a::x",
            "y -> x  src/a/y.rs:1  a::x::deep",
        ];
        assert_eq!(imports_below("a", &files).unwrap(), expected);
        assert_eq!(imports(&files).unwrap(), ["a -> b  src/a/x.rs:3  b"]);
    }

    #[test]
    fn imports_of_tests_are_none() {
        let found = imports(&[
            ("src/lib.rs", "mod a; mod b; #[cfg(test)] mod c;"),
            (
                "src/a.rs",
                "#[cfg(test)]\nuse crate::b;\n#[cfg(test)]\nmod tests;\n\
                 #[cfg(test)]\nmod more { use crate::b; }",
            ),
            ("src/b.rs", "use crate::a;"),
        ]);
        assert_eq!(found.unwrap(), ["b -> a  src/b.rs:1  a"]);
    }

    #[test]
    fn what_can_t_be_followed_is_refused() {
        let refused = |files: &[(&str, &str)]| imports(files).unwrap_err();
        assert_eq!(
            refused(&[("src/lib.rs", "\nmod a;")]),
            "src/lib.rs:2: mod a has no file"
        );
        assert_eq!(
            refused(&[("src/lib.rs", "mod a; pub use a::*;"), ("src/a.rs", "")]),
            format!("src/lib.rs:1: {STAR}")
        );
        assert_eq!(
            refused(&[("src/lib.rs", "mod a;"), ("src/a.rs", "use crate::*;")]),
            format!("src/a.rs:1: {STAR}")
        );
        assert_eq!(
            refused(&[(
                "src/lib.rs",
                "mod a { use std::fmt;\nmod b { use super::*; } }"
            )]),
            format!("src/lib.rs:2: {STAR}")
        );
    }
}
