//! `pdf-text FILE`: prints a PDF's text, a form feed behind each page. The tests' process, too.

use std::{
    env,
    error::Error,
    fs::File,
    io::{self, Write},
    sync::Arc,
};

use sluice_apart::Patience;
use sluice_documents::{Pages, limits::WAIT_MAX, process};

fn main() -> Result<(), Box<dyn Error>> {
    let argument = env::args_os().nth(1).ok_or("usage: pdf-text FILE")?;
    if argument == process::ARGUMENT {
        return Ok(process::serve()?);
    }
    let patience = Patience::new(WAIT_MAX, Arc::default());
    let mut output = io::stdout().lock();
    for page in Pages::of_pdf(&env::current_exe()?, File::open(argument)?, &patience)? {
        writeln!(output, "{}\x0c", page?.text)?;
    }
    Ok(())
}
