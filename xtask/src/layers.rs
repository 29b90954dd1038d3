//! `cargo xtask layers`: which crate imports which, and which module which other beside it, read from the sources. Crates
//! cannot import each other in a circle, since Cargo refuses it; modules can, at any depth, and then nobody can read, change
//! or test one without all the others. A module and those below it are one: what it defines may be used by all of them.

mod modules;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use modules::{Levels, Modules};

use crate::outcome::Outcome;
use crate::system::root;

/// Who imports whom.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// The check as a step of CI: fails where modules import each other in a circle, and shows by which lines.
pub(crate) fn check() -> io::Result<Outcome> {
    let mut failures = Vec::new();
    for package in packages()? {
        for (above, modules) in package.crates()?.iter().flatten() {
            for circle in circles(&graph(modules)) {
                let names = Vec::from_iter(circle.iter().copied()).join(", ");
                let place = format!("{} {above}", package.name);
                println!("{}: a circle of {names}", place.trim_end());
                print_edges(modules, &circle);
                failures.push(package.name.clone());
            }
        }
    }
    failures.dedup();
    Ok(match failures.is_empty() {
        true => Outcome::Passed,
        false => Outcome::Failed(format!("circles in {}", failures.join(", "))),
    })
}

/// Prints a graph for Mermaid, which GitHub's pages draw: of all crates, or of the modules of one.
pub(crate) fn picture(package: Option<&str>) -> ExitCode {
    match graphs(package) {
        Ok(graphs) => {
            for graph in graphs {
                print!("{}", mermaid(&graph));
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("layers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn graphs(package: Option<&str>) -> io::Result<Vec<Graph>> {
    let packages = packages()?;
    let Some(name) = package else {
        return Ok(vec![crate_graph(&packages)]);
    };
    let package = packages
        .iter()
        .find(|package| package.name == name || short(&package.name) == name)
        .ok_or_else(|| io::Error::other(format!("there is no crate {name}")))?;
    let crates = package.crates()?;
    Ok(crates
        .iter()
        .filter_map(|levels| levels.get(""))
        .map(graph)
        .collect())
}

/// A package of the workspace, as its manifest describes it.
struct Package {
    name: String,
    /// In the repository.
    folder: String,
    /// Packages that it depends on, other people's among them, but for those of tests and build scripts.
    dependencies: Vec<String>,
}

impl Package {
    /// The modules of its library, and those of its program.
    fn crates(&self) -> io::Result<Vec<Levels>> {
        let read = |path: &Path| fs::read_to_string(root().join(path)).ok();
        ["src/lib.rs", "src/main.rs"]
            .map(|file| Path::new(&self.folder).join(file))
            .iter()
            .filter(|file| root().join(file).exists())
            .map(|file| modules::levels(file, &read).map_err(io::Error::other))
            .collect()
    }
}

/// The workspace's packages, in the order of its manifest.
fn packages() -> io::Result<Vec<Package>> {
    let read = |folder: &str| fs::read_to_string(root().join(folder).join("Cargo.toml"));
    let workspace = read("")?;
    let members = workspace
        .lines()
        .find_map(|line| line.strip_prefix("members = ["));
    let members = members.ok_or_else(|| io::Error::other("Cargo.toml has no line of members"))?;
    members
        .split('"')
        .skip(1)
        .step_by(2)
        .map(|folder| {
            let manifest = read(folder)?;
            let name = manifest
                .lines()
                .find_map(|line| line.strip_prefix("name = "));
            Ok(Package {
                name: name.unwrap_or(folder).trim_matches('"').to_owned(),
                folder: folder.to_owned(),
                dependencies: dependencies(&manifest),
            })
        })
        .collect()
}

fn dependencies(manifest: &str) -> Vec<String> {
    let section = manifest
        .split("\n[")
        .find_map(|section| section.strip_prefix("dependencies]"));
    let lines = section.unwrap_or_default().lines();
    lines
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .map(str::to_owned)
        .collect()
}

fn crate_graph(packages: &[Package]) -> Graph {
    let name = |package: &Package| short(&package.name).to_owned();
    packages
        .iter()
        .map(|package| {
            let imports = |other: &&Package| package.dependencies.contains(&other.name);
            let imported = packages.iter().filter(imports).map(name).collect();
            (name(package), imported)
        })
        .collect()
}

/// A crate's name as its folder has it.
fn short(name: &str) -> &str {
    name.strip_prefix("sluice-").unwrap_or(name)
}

fn graph(modules: &Modules) -> Graph {
    let mut graph: Graph = modules
        .names
        .iter()
        .map(|name| (name.clone(), BTreeSet::new()))
        .collect();
    for import in &modules.imports {
        let imported = graph.entry(import.from.clone()).or_default();
        imported.insert(import.to.clone());
    }
    graph
}

/// The largest sets of nodes each of which leads to all others of its set.
fn circles(graph: &Graph) -> Vec<BTreeSet<&str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = graph
        .keys()
        .map(|node| (node.as_str(), reached(graph, node)))
        .collect();
    let mut circles: Vec<BTreeSet<&str>> = reached
        .iter()
        .filter(|(node, reached)| reached.contains(*node))
        .map(|(node, all)| {
            let leads_back = |other: &&&str| reached[**other].contains(node);
            all.iter().filter(leads_back).copied().collect()
        })
        .collect();
    circles.sort();
    circles.dedup();
    circles
}

/// What can be reached from a node in one step or more.
fn reached<'a>(graph: &'a Graph, node: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![node];
    while let Some(node) = open.pop() {
        for next in &graph[node] {
            if reached.insert(next.as_str()) {
                open.push(next);
            }
        }
    }
    reached
}

fn print_edges(modules: &Modules, circle: &BTreeSet<&str>) {
    for import in &modules.imports {
        if circle.contains(import.from.as_str()) && circle.contains(import.to.as_str()) {
            println!("  {import}");
        }
    }
}

/// Without circles, an arrow is left out that a way over other nodes makes superfluous: what is left shows the layers.
fn mermaid(graph: &Graph) -> String {
    let has_circle = !circles(graph).is_empty();
    let mut text = String::from("flowchart TD\n");
    // The names alone may be words of Mermaid's.
    for node in graph.keys() {
        writeln!(text, "    {node}_[\"{node}\"]").expect("memory takes all");
    }
    for (from, all) in graph {
        for to in all {
            let is_implied = || {
                all.iter()
                    .any(|via| reached(graph, via).contains(to.as_str()))
            };
            if has_circle || !is_implied() {
                writeln!(text, "    {from}_ --> {to}_").expect("memory takes all");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph_of(edges: &[(&str, &str)]) -> Graph {
        let mut graph = Graph::new();
        for &(from, to) in edges {
            graph.entry(to.to_owned()).or_default();
            let imported = graph.entry(from.to_owned()).or_default();
            imported.insert(to.to_owned());
        }
        graph
    }

    #[test]
    fn circles_are_found_and_kept_apart() {
        let edges = [
            ("a", "b"),
            ("b", "c"),
            ("c", "a"),
            ("c", "d"),
            ("d", "e"),
            ("e", "d"),
            ("e", "f"),
        ];
        let expected = [BTreeSet::from(["a", "b", "c"]), BTreeSet::from(["d", "e"])];
        assert_eq!(circles(&graph_of(&edges)), expected);
        assert!(circles(&graph_of(&edges[3..5])).is_empty());
    }

    #[test]
    fn a_circle_in_sources_is_found_with_its_lines() {
        let read = |path: &Path| {
            let source = match path.to_str()? {
                "lib.rs" => "mod a; mod b; mod c; pub use b::B;",
                "a.rs" => "use crate::{\n    B, c::C,\n};",
                "b.rs" => "fn f() {\n    super::a::g();\n}",
                "c.rs" => "",
                _ => return None,
            };
            Some(source.to_owned())
        };
        let levels = modules::levels(Path::new("lib.rs"), &read).unwrap();
        let modules = &levels[""];
        let graph = graph(modules);
        assert_eq!(circles(&graph), [BTreeSet::from(["a", "b"])]);
        let lines: Vec<_> = modules.imports.iter().map(ToString::to_string).collect();
        assert_eq!(lines[0], "a -> b  a.rs:1  B");
        assert_eq!(lines[2], "b -> a  b.rs:2  a::g");
    }

    #[test]
    fn a_circle_below_a_module_is_found_with_its_lines() {
        let read = |path: &Path| {
            let source = match path.to_str()? {
                "lib.rs" => "mod a;",
                "a.rs" => "mod x; mod y; mod z; pub use y::Y; pub struct Own;",
                "a/x.rs" => "use super::{\n    Own, Y,\n};",
                "a/y.rs" => "use crate::a::{Own,\n    x};\nuse super::z;",
                "a/z.rs" => "use super::Own;",
                _ => return None,
            };
            Some(source.to_owned())
        };
        let levels = modules::levels(Path::new("lib.rs"), &read).unwrap();
        assert!(circles(&graph(&levels[""])).is_empty());
        let modules = &levels["a"];
        assert_eq!(circles(&graph(modules)), [BTreeSet::from(["x", "y"])]);
        let lines: Vec<_> = modules.imports.iter().map(ToString::to_string).collect();
        let expected = [
            "x -> y  a/x.rs:1  a::Y",
            "y -> x  a/y.rs:1  a::x",
            "y -> z  a/y.rs:3  a::z",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_picture_has_the_arrows_that_no_others_imply() {
        let graph = graph_of(&[("top", "end"), ("top", "low"), ("end", "low")]);
        let expected = "flowchart TD\n    end_[\"end\"]\n    low_[\"low\"]\n    top_[\"top\"]\n    \
                        end_ --> low_\n    top_ --> end_\n";
        assert_eq!(mermaid(&graph), expected);
    }

    #[test]
    fn every_package_is_found_with_what_it_depends_on() {
        let packages = packages().unwrap();
        assert!(packages.iter().any(|package| package.name == "sluice-hub"));
        let graph = crate_graph(&packages);
        assert!(graph["daemon"].contains("engine"));
        assert!(!graph["tui"].contains("engine"));
        assert!(circles(&graph).is_empty());
    }

    #[test]
    fn dependencies_of_tests_and_build_scripts_are_none() {
        let manifest = "[package]\nname = \"a\"\n\n[build-dependencies]\nb = \"1\"\n\n\
                        [dependencies]\nc.workspace = true\nd = { path = \"../d\" }\n\n\
                        [dev-dependencies]\ne = \"1\"\n";
        let found = dependencies(manifest);
        assert!(found.contains(&"c".to_owned()) && found.contains(&"d".to_owned()));
        assert!(!found.contains(&"b".to_owned()) && !found.contains(&"e".to_owned()));
    }
}
