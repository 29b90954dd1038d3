//! Shared libraries that are opened at run time. An absent one is an error, never a panic.

use libloading::Library;

/// Declares a table of a library's functions, which all return a code, and a function that fills it. Every symbol is
/// looked up at once, so that a library that lacks one is refused before any of it is used.
macro_rules! functions {
    ($(#[$meta:meta])* struct $table:ident {
        $($field:ident: $symbol:ident($($argument:ty),* $(,)?),)*
    }) => {
        $(#[$meta])*
        pub(crate) struct $table {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> $crate::library::ErrorCode,)*
        }

        impl $table {
            /// # Safety
            /// The library's functions are as declared here.
            ///
            /// # Errors
            /// The library's name for a function that it lacks.
            unsafe fn find(library: &libloading::Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the type is the one declared, which the caller vouches for.
                        let symbol = unsafe {
                            library.get(concat!(stringify!($symbol), "\0").as_bytes())
                        };
                        *symbol.map_err(|_| stringify!($symbol))?
                    },)*
                })
            }
        }
    };
}
pub(crate) use functions;

/// A return code of CUDA's libraries; 0 is success. Not a Rust enum, since newer libraries have newer codes.
pub(crate) type ErrorCode = i32;

/// Opens the first of `names` that can be opened, and returns its name.
///
/// # Errors
/// The system's message for each.
pub(crate) fn open_first<'a>(names: &[&'a str]) -> Result<(Library, &'a str), String> {
    let mut reasons = Vec::new();
    for name in names {
        // SAFETY: opening runs the initializers of NVIDIA's library, which are made for that.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok((library, name)),
            Err(cause) => reasons.push(cause.to_string()),
        }
    }
    Err(reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use libloading::os::unix::Library as UnixLibrary;

    use super::*;

    functions! {
        struct Functions {
            _there: malloc(usize),
            _missing: cuNoSuchFunction(i32),
        }
    }

    #[test]
    fn a_function_that_is_missing_is_named() {
        // SAFETY: neither is called.
        let found = unsafe { Functions::find(&UnixLibrary::this().into()) };
        assert_eq!(found.err(), Some("cuNoSuchFunction"));
    }

    #[test]
    fn each_library_that_is_missing_is_named() {
        let reason = open_first(&["libnosuch.so.2", "libnosuch.so.1"]).unwrap_err();
        assert!(reason.contains("libnosuch.so.2: ") && reason.contains("libnosuch.so.1: "));
    }
}
