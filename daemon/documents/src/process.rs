//! The process that reads documents: one for each, which ends with it.
//!
//! It is sent the file's bytes, until the socket's end; it sends a frame for each page with text, then one that says that
//! these were all, or what is wrong with the file.

use std::{
    ffi::CStr,
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    path::Path,
};

use sluice_apart::{
    Bounds, How, Patience, Patient, Process, WaitEnded, begin,
    frame::{Frame, Reading, receive},
    is_gone,
};

use crate::{
    DocumentError,
    limits::{CPU_SECONDS_MAX, FILE_BYTES_MAX, MEMORY_BYTES_MAX, PAGE_BYTES_MAX, TEXT_BYTES_MAX},
    pdf::{self, Stop},
};

/// The argument that makes a program call [`serve`], alone.
pub const ARGUMENT: &str = "document-process";

/// What lists of processes call it.
const NAME: &CStr = c"sluiced-pdf";
/// Descriptors that the process may have open.
const DESCRIPTORS_MAX: u64 = 16;
/// Bytes of the file that are in the daemon's memory at a time.
const CHUNK_BYTES: usize = 64 << 10;
/// Bytes of a frame beside a page's text.
const FRAME_BYTES: usize = 16;

// Bytes that no length or small number contains.
const PAGE: u8 = 0xA5;
const END: u8 = 0xE0;
const ERROR: u8 = 0xE1;

/// The text of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The page's place in the document, from 1.
    pub number: u32,
    /// Its lines. An empty line is between paragraphs, as far as the layout tells them.
    pub text: String,
}

/// The pages of a document that have text, in order, while a process reads them. An error is the last item. The process ends
/// when this is dropped.
#[derive(Debug)]
pub struct Pages {
    process: Process,
    stream: Patient,
    text_bytes: usize,
    is_done: bool,
}

impl Pages {
    /// Has the text of a PDF read by a process of its own, which `program` becomes when it is started with [`ARGUMENT`]. The
    /// patience is for all of it; [`WAIT_MAX`](crate::limits::WAIT_MAX) is enough for what the process may do.
    ///
    /// # Errors
    /// When there is no process, the file cannot be read, or the patience ends. What is wrong with the file's contents is told
    /// by the first page or a later one.
    pub fn of_pdf(
        program: &Path,
        file: impl Read,
        patience: &Patience,
    ) -> Result<Self, DocumentError> {
        let process = Process::start(program, NAME, ARGUMENT).map_err(DocumentError::process)?;
        let stream = process.control.try_clone();
        let mut pages = Self {
            process,
            stream: Patient {
                stream: stream.map_err(DocumentError::process)?,
                patience: patience.clone(),
            },
            text_bytes: 0,
            is_done: false,
        };
        pages.send(file)?;
        Ok(pages)
    }

    fn send(&mut self, mut file: impl Read) -> Result<(), DocumentError> {
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut sent = 0;
        loop {
            let read = match file.read(&mut chunk) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let cause = error.to_string();
                    return Err(DocumentError::File { cause });
                }
            };
            sent += read as u64;
            if sent > FILE_BYTES_MAX {
                return Err(DocumentError::FileTooLarge);
            }
            match (&mut self.stream).write_all(&chunk[..read]) {
                Ok(()) => {}
                // It has said why, or its end tells.
                Err(error) if is_gone(&error) => return Ok(()),
                Err(error) => return Err(told(error)),
            }
        }
        // Where it is gone, the next read tells.
        let _ = self.stream.stream.shutdown(Shutdown::Write);
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<Page>, DocumentError> {
        match receive(&mut self.stream, PAGE_BYTES_MAX + FRAME_BYTES) {
            Ok(Some(frame)) => match read_answer(&frame).map_err(DocumentError::process)? {
                Answer::Page(page) => {
                    self.text_bytes += page.text.len();
                    match self.text_bytes > TEXT_BYTES_MAX {
                        true => Err(DocumentError::TextTooLong),
                        false => Ok(Some(page)),
                    }
                }
                Answer::End => Ok(None),
                Answer::Error(error) => Err(error),
            },
            Ok(None) => Err(self.how_it_ended()),
            Err(error) if is_gone(&error) => Err(self.how_it_ended()),
            Err(error) => Err(told(error)),
        }
    }

    fn how_it_ended(&mut self) -> DocumentError {
        match self.process.how_it_ended() {
            How::Cpu => DocumentError::Cpu,
            How::Memory => DocumentError::Memory,
            How::Otherwise(ended) => DocumentError::process(format_args!("it ended ({ended:?})")),
        }
    }
}

impl Iterator for Pages {
    type Item = Result<Page, DocumentError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let page = self.receive().transpose();
        self.is_done = !matches!(page, Some(Ok(_)));
        page
    }
}

/// What the process says.
enum Answer {
    Page(Page),
    End,
    Error(DocumentError),
}

fn read_answer(frame: &[u8]) -> io::Result<Answer> {
    let mut reading = Reading(frame);
    Ok(match reading.tag()? {
        PAGE => Answer::Page(Page {
            number: u32::try_from(reading.number()?).map_err(io::Error::other)?,
            text: reading.text()?.to_owned(),
        }),
        END => Answer::End,
        ERROR => {
            let error = DocumentError::TOLD.get(reading.number()?);
            Answer::Error(error.ok_or(io::ErrorKind::InvalidData)?.clone())
        }
        _ => return Err(io::ErrorKind::InvalidData.into()),
    })
}

fn told(error: io::Error) -> DocumentError {
    match WaitEnded::of(&error) {
        Some(ended) => ended.into(),
        None => DocumentError::process(error),
    }
}

/// Reads the document that the other end of standard input, a Unix socket, sends. The caller has one thread and exits
/// afterwards.
///
/// # Errors
/// When the system refuses a call, or the other end is gone.
pub fn serve() -> io::Result<()> {
    let bounds = Bounds {
        memory_bytes: MEMORY_BYTES_MAX,
        cpu_seconds: CPU_SECONDS_MAX,
        descriptors: DESCRIPTORS_MAX,
    };
    let stream = begin(NAME, &bounds)?;
    let mut file = Vec::new();
    (&stream).take(FILE_BYTES_MAX).read_to_end(&mut file)?;
    let (mut page_number, mut text_bytes) = (0, 0);
    let read = pdf::read(file, |text| {
        page_number += 1;
        text_bytes += text.len();
        if text.len() > PAGE_BYTES_MAX || text_bytes > TEXT_BYTES_MAX {
            return Err(Stop::Document(DocumentError::TextTooLong));
        }
        if !text.is_empty() {
            let mut frame = Frame::new(PAGE);
            frame.number(page_number).bytes(text.as_bytes());
            frame.send(&stream).map_err(Stop::Socket)?;
        }
        Ok(())
    });
    match read {
        Ok(()) if text_bytes == 0 => send_error(&DocumentError::NoText, &stream),
        Ok(()) => Frame::new(END).send(&stream),
        Err(Stop::Document(error)) => send_error(&error, &stream),
        Err(Stop::Socket(error)) => Err(error),
    }
}

fn send_error(error: &DocumentError, stream: &UnixStream) -> io::Result<()> {
    let place = DocumentError::TOLD.iter().position(|told| told == error);
    let mut frame = Frame::new(ERROR);
    frame.number(place.ok_or(io::ErrorKind::InvalidInput)?);
    frame.send(stream)
}
