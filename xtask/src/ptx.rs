//! `cargo xtask ptx`: the kernels of `daemon/cuda/kernels`, compiled to the PTX that is committed beside them. No card is
//! needed, and nothing of CUDA: NVIDIA's compiler comes from Python's package index, and stays below `target`. What is
//! committed is compressed, since every change of a kernel replaces a hundred thousand lines that nobody reads.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::ptr;

use libloading::Library;
use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib;

use crate::outcome::Outcome;
use crate::system::{TemporaryFolder, has, root};

/// Where the compiler is kept, below the repository.
const TOOLS: &str = "target/cuda-compiler";
const KERNELS: &str = "daemon/cuda/kernels";
const PTX: &str = "daemon/cuda/ptx";

/// How often a module is compiled before it counts as changed. Where the compiler's memory happens to lie decides, once in
/// a while, whether it reads two numbers at once or twice the one.
const COMPILATIONS: u32 = 5;

/// Assemblers and the GPU architectures that they know: those of CUDA 12.0 drivers and the newest.
const ASSEMBLERS: [(&str, &str, &[u32]); 2] = [
    ("12.0", "nvidia/cuda_nvcc/bin/ptxas", &[75, 80, 86, 89, 90]),
    (
        "13.5",
        "nvidia/cu13/bin/ptxas",
        &[75, 80, 86, 89, 90, 100, 120],
    ),
];

/// What becomes of the PTX.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It takes the place of what is committed.
    Write,
    /// It is compared with what is committed, and assembled for every GPU architecture.
    Check,
}

/// Why there is no compiler.
#[derive(Debug, PartialEq, Eq)]
enum NoTools {
    /// This machine lacks what it takes to fetch it; that says nothing of the kernels.
    OutOfReach(String),
    /// What was fetched is not what was asked for, or cannot be kept.
    Failed(String),
}

impl NoTools {
    fn words(self) -> String {
        match self {
            Self::OutOfReach(words) | Self::Failed(words) => words,
        }
    }
}

impl From<io::Error> for NoTools {
    fn from(cause: io::Error) -> Self {
        Self::Failed(cause.to_string())
    }
}

/// The check as a step of CI. Where the compiler is out of reach there is none; one that isn't what the hashes say fails it.
pub(crate) fn ci_step() -> io::Result<Outcome> {
    let tools = match tools() {
        Ok(tools) => tools,
        Err(NoTools::OutOfReach(words)) => return Ok(Outcome::Skipped(words)),
        Err(NoTools::Failed(words)) => return Ok(Outcome::Failed(words)),
    };
    Ok(match make(Mode::Check, &tools)? {
        true => Outcome::Passed,
        false => Outcome::Failed("the kernels and their PTX don't agree".to_owned()),
    })
}

pub(crate) fn run(mode: Mode) -> ExitCode {
    let tools = tools().map_err(|why| io::Error::other(why.words()));
    match tools.and_then(|tools| make(mode, &tools)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("ptx: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all is as it should be.
fn make(mode: Mode, tools: &Path) -> io::Result<bool> {
    let compiler = Compiler::open(tools)?;
    let modules = modules()?;
    let mut good = true;
    for module in &modules {
        let file = file_of(module);
        // What isn't there, or is damaged, is as good as empty.
        let committed = read(module).unwrap_or_default();
        let mut text = String::new();
        for _ in 0..COMPILATIONS {
            text = compiler.compile(module, tools)?;
            if text == committed {
                break;
            }
        }
        match mode {
            _ if text == committed => {}
            Mode::Write => fs::write(file, compressed(&text))?,
            Mode::Check => {
                eprintln!("ptx: {} is not what {module}.cu gives", file.display());
                good = false;
            }
        }
    }
    for file in fs::read_dir(root().join(PTX))? {
        let file = file?.path();
        if modules.iter().any(|module| file == file_of(module)) {
            continue;
        }
        match mode {
            Mode::Write => fs::remove_file(file)?,
            Mode::Check => {
                eprintln!("ptx: {} is of no module", file.display());
                good = false;
            }
        }
    }
    match mode {
        Mode::Write => Ok(good),
        Mode::Check => Ok(assemble(tools, &modules)? && good),
    }
}

/// Where a module's PTX is committed.
fn file_of(module: &str) -> PathBuf {
    root().join(PTX).join(format!("{module}.zlib"))
}

/// The bytes that are committed, the same for the same text.
fn compressed(ptx: &str) -> Vec<u8> {
    const BEST: u8 = 10;
    compress_to_vec_zlib(ptx.as_bytes(), BEST)
}

/// The PTX that is committed.
fn read(module: &str) -> io::Result<String> {
    let compressed = fs::read(file_of(module))?;
    let text =
        decompress_to_vec_zlib(&compressed).map_err(|error| io::Error::other(error.to_string()))?;
    String::from_utf8(text).map_err(io::Error::other)
}

/// Shows a module's PTX as it is committed.
pub(crate) fn print(module: &str) -> ExitCode {
    match read(module).and_then(|text| io::stdout().write_all(text.as_bytes())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ptx: {module}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The modules that `list.h` names: each is a file of kernels and one of PTX.
fn modules() -> io::Result<Vec<String>> {
    let list = fs::read_to_string(root().join(KERNELS).join("list.h"))?;
    let name = |line: &str| Some(line.strip_prefix("MODULE(")?.strip_suffix(')')?.to_owned());
    Ok(list.lines().filter_map(name).collect())
}

/// The compiler's folder, filled by the first call.
fn tools() -> Result<PathBuf, NoTools> {
    let folder = root().join(TOOLS);
    let wanted = fs::read_to_string(root().join(KERNELS).join("compiler.txt"))?;
    let marker = folder.join("compiler.txt");
    if fs::read_to_string(&marker).is_ok_and(|found| found == wanted) {
        return Ok(folder);
    }
    if !has("python3", &["-m", "pip", "--version"]) {
        return Err(NoTools::OutOfReach(
            "the compiler comes from Python's package index, and there is no pip\n\
             install python3-pip, so that `python3 -m pip` works"
                .to_owned(),
        ));
    }
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    eprintln!("ptx: fetching NVIDIA's compiler, 90 MB, into {TOOLS}");
    let output = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-deps"])
        .args(["--require-hashes", "--only-binary", ":all:"])
        .arg("--target")
        .arg(&folder)
        .arg("-r")
        .arg(root().join(KERNELS).join("compiler.txt"))
        .output()?;
    if !output.status.success() {
        return Err(unfetched(&String::from_utf8_lossy(&output.stderr)));
    }
    fs::write(marker, wanted)?;
    Ok(folder)
}

/// What pip's words mean, whose exit code is always the same.
fn unfetched(words: &str) -> NoTools {
    let all = format!(
        "pip cannot fetch the compiler, which exists for Linux on x86-64\n{}",
        words.trim()
    );
    let is_wrong = words.contains("DO NOT MATCH THE HASHES");
    // It tries again and again before it says that there is no such package.
    let is_offline = words.contains("connection broken by") || words.contains("Connection to ");
    match is_offline && !is_wrong {
        true => NoTools::OutOfReach(all),
        false => NoTools::Failed(all),
    }
}

/// A compilation in NVRTC.
type Program = *mut c_void;

/// NVRTC, NVIDIA's compiler as a library.
struct Compiler(Library);

impl Compiler {
    fn open(tools: &Path) -> io::Result<Self> {
        let file = tools.join("nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
        // SAFETY: NVRTC's initializers do nothing that others could see.
        let library = unsafe { Library::new(file) };
        library.map(Self).map_err(io::Error::other)
    }

    /// PTX for the oldest GPUs that have what the module needs.
    fn compile(&self, module: &str, tools: &Path) -> io::Result<String> {
        let kernels = root().join(KERNELS);
        let file = format!("{module}.cu");
        let source = c_string(fs::read_to_string(kernels.join(&file))?)?;
        let name = c_string(file)?;
        let capability = if module.ends_with("_bf16") { 80 } else { 75 };
        let includes = [
            kernels,
            tools.join("nvidia/cuda_runtime/include"),
            tools.join("nvidia/cuda_nvcc/include"),
        ];
        let options: Vec<CString> = [
            "--std=c++17".to_owned(),
            // Products and sums are rounded one by one, as on the CPU.
            "--fmad=false".to_owned(),
            format!("--gpu-architecture=compute_{capability}"),
        ]
        .into_iter()
        .chain(includes.map(|folder| format!("-I{}", folder.display())))
        .map(c_string)
        .collect::<io::Result<_>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let count = c_int::try_from(options.len()).expect("they are few");

        let mut program: Program = ptr::null_mut();
        // SAFETY: the types are those of nvrtc.h. Strings end with a NUL and live through the calls, there are as many
        // options as is said, and the program is destroyed once, after its last use.
        unsafe {
            type Create = unsafe extern "C" fn(
                *mut Program,
                *const c_char,
                *const c_char,
                c_int,
                *const *const c_char,
                *const *const c_char,
            ) -> c_int;
            type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
            type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;
            let create = self.function::<Create>("nvrtcCreateProgram")?;
            let compile = self.function::<Compile>("nvrtcCompileProgram")?;
            let destroy = self.function::<Destroy>("nvrtcDestroyProgram")?;
            check(create(
                &raw mut program,
                source.as_ptr(),
                name.as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            ))?;
            let compiled = check(compile(program, count, options.as_ptr()));
            let log = self.text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")?;
            eprint!("{log}");
            let ptx = compiled.and_then(|()| self.text(program, "nvrtcGetPTXSize", "nvrtcGetPTX"));
            check(destroy(&raw mut program))?;
            Ok(slim(module, &ptx?))
        }
    }

    /// A text of a program, by the functions that give its size and itself.
    ///
    /// # Safety
    /// They must be of the kinds below, and the program must live.
    unsafe fn text(&self, program: Program, size: &str, text: &str) -> io::Result<String> {
        type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
        type Text = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
        let mut len = 0;
        // SAFETY: the caller says so, and the memory is as large as NVRTC wants it.
        let mut bytes = unsafe {
            check(self.function::<Size>(size)?(program, &raw mut len))?;
            let mut bytes = vec![0_u8; len];
            check(self.function::<Text>(text)?(
                program,
                bytes.as_mut_ptr().cast(),
            ))?;
            bytes
        };
        // The NUL at the end.
        bytes.pop();
        String::from_utf8(bytes).map_err(io::Error::other)
    }

    /// # Safety
    /// The function must be of type `F`.
    unsafe fn function<F: Copy>(&self, name: &str) -> io::Result<F> {
        // SAFETY: the caller says so; it lives as long as the library, which callers borrow.
        unsafe { self.0.get::<F>(name.as_bytes()) }
            .map(|function| *function)
            .map_err(io::Error::other)
    }
}

fn c_string(text: String) -> io::Result<CString> {
    CString::new(text).map_err(io::Error::other)
}

fn check(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        code => Err(io::Error::other(format!("NVRTC ends with code {code}"))),
    }
}

/// PTX without what nothing needs, a tenth of it: the compiler's remarks, tabs, and constants of its headers.
fn slim(module: &str, ptx: &str) -> String {
    let mut slim = format!(
        "// Compiled from {module}.cu by `cargo xtask ptx`, with NVIDIA's CUDA compiler.\n"
    );
    for line in ptx.lines().map(str::trim) {
        let idle = line.is_empty() || line.starts_with("//") || line.contains("nv6target");
        if !idle {
            slim.push_str(&line.replace('\t', ""));
            slim.push('\n');
        }
    }
    slim
}

/// Resources that a GPU spends on one thread of a kernel.
struct Cost {
    registers: u32,
    shared_bytes: u32,
    /// Of slow memory, for registers that were not enough and for arrays that don't lie in registers.
    local_bytes: u32,
}

/// Assembles all modules for all GPU architectures and shows what their kernels take. False where one keeps in slow memory
/// what belongs in registers.
fn assemble(tools: &Path, modules: &[String]) -> io::Result<bool> {
    let folder = TemporaryFolder::new("ptx")?;
    let mut good = true;
    for (version, program, cards) in ASSEMBLERS {
        println!(
            "\nassembler {version}: registers on each kind of card, and bytes of shared memory"
        );
        let heads: String = cards.iter().map(|card| format!("{card:>5}")).collect();
        println!("{:26}{heads} shared", "");
        for module in modules {
            let file = folder.path().join(format!("{module}.ptx"));
            let text = read(module)?;
            fs::write(&file, &text)?;
            // Assemblers may still find registers for it; the next one may not.
            if has_local_array(&text) {
                eprintln!("ptx: {module} has an array in slow memory");
                good = false;
            }
            // By kernel, then by GPU; none where the GPU is older than the module.
            let mut kernels: BTreeMap<String, Vec<Option<Cost>>> = BTreeMap::new();
            for (column, card) in cards.iter().enumerate() {
                if text.contains(".target sm_80") && *card < 80 {
                    continue;
                }
                let output = Command::new(tools.join(program))
                    .args(["-v", &format!("-arch=sm_{card}"), "-o", "/dev/null"])
                    .arg(&file)
                    .output()?;
                let report = String::from_utf8_lossy(&output.stderr);
                if !output.status.success() {
                    return Err(io::Error::other(format!("{module} on sm_{card}: {report}")));
                }
                for (kernel, cost) in costs(&report) {
                    let row = kernels.entry(kernel).or_default();
                    row.resize_with(cards.len(), || None);
                    row[column] = Some(cost);
                }
            }
            for (kernel, costs) in kernels {
                let registers: String = costs
                    .iter()
                    .map(|cost| match cost {
                        Some(cost) => format!("{:>5}", cost.registers),
                        None => format!("{:>5}", "-"),
                    })
                    .collect();
                let costs = || costs.iter().flatten();
                let shared = costs().map(|cost| cost.shared_bytes).max().unwrap_or(0);
                let local = costs().map(|cost| cost.local_bytes).max().unwrap_or(0);
                print!("{kernel:26}{registers} {shared:>6}");
                if local > 0 {
                    print!("  {local} bytes in slow memory");
                    good = false;
                }
                println!();
            }
        }
    }
    Ok(good)
}

/// Whether a kernel finds numbers of its own by an index that the compiler didn't know.
fn has_local_array(ptx: &str) -> bool {
    ptx.contains(".local .align")
}

/// What an assembler's report says of each kernel.
fn costs(report: &str) -> Vec<(String, Cost)> {
    let mut costs = Vec::new();
    let mut kernel = String::new();
    let mut local_bytes = 0;
    for line in report.lines() {
        // "12 bytes spill stores": the number before the words.
        let number = |words: &str| -> u32 {
            let before = line.split_once(words).map_or("", |(before, _)| before);
            let digits = before.rsplit([' ', ',']).next();
            digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
        };
        if line.contains("Compiling entry function") {
            kernel = line.split('\'').nth(1).unwrap_or_default().to_owned();
        } else if line.contains("bytes stack frame") {
            // What is spilled lies there too.
            local_bytes = number(" bytes stack frame").max(number(" bytes spill stores"));
        } else if line.contains("Used ") {
            let cost = Cost {
                registers: number(" registers"),
                shared_bytes: number(" bytes smem"),
                local_bytes,
            };
            costs.push((std::mem::take(&mut kernel), cost));
        }
    }
    costs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_compiler_out_of_reach_is_done_without() {
        let offline = "WARNING: Retrying (Retry(total=0)) after connection broken by \
                       'NewConnectionError('Failed to establish a new connection')'\n\
                       ERROR: Could not find a version that satisfies the requirement";
        assert!(matches!(unfetched(offline), NoTools::OutOfReach(_)));
        let wrong = "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.";
        for words in [
            wrong,
            &format!("{offline}\n{wrong}"),
            "No space left on device",
        ] {
            assert!(matches!(unfetched(words), NoTools::Failed(_)), "{words}");
        }
    }

    #[test]
    fn the_same_ptx_is_compressed_to_the_same_bytes() {
        let ptx = read("head").unwrap();
        assert!(ptx.contains(".entry "));
        assert_eq!(compressed(&ptx), fs::read(file_of("head")).unwrap());
    }

    #[test]
    fn an_array_in_slow_memory_is_seen_in_the_ptx() {
        let few = ".visible .entry few()\n{\n.local .align 16 .b8 __local_depot0[64];\n";
        assert!(has_local_array(few));
        assert!(!has_local_array(
            ".shared .align 16 .b8 tile[64];\nld.local.f32"
        ));
    }

    #[test]
    fn what_lies_in_slow_memory_is_counted() {
        let report = "ptxas info    : Compiling entry function 'a' for 'sm_75'\n\
                      ptxas info    : Function properties for a\n    \
                      64 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
                      ptxas info    : Used 40 registers, 4096 bytes smem, 400 bytes cmem[0]\n";
        let costs = costs(report);
        let (kernel, cost) = &costs[0];
        assert_eq!((kernel.as_str(), costs.len()), ("a", 1));
        assert_eq!(
            (cost.registers, cost.shared_bytes, cost.local_bytes),
            (40, 4096, 64)
        );
    }
}
