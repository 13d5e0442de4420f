//! Compiles `proto/` to Rust with protox, so that no machine needs `protoc`, and generates the table of access from the
//! methods' options: a method without the option `(pinion.v1.access)` fails the build.

use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;

use prost_reflect::{
    DescriptorPool, DynamicMessage, ExtensionDescriptor, Kind, MessageDescriptor, MethodDescriptor, ServiceDescriptor,
};

/// The service that the wrapper `Guarded` is for.
const SERVICE: &str = "pinion.v1.Control";
const PACKAGE: &str = "pinion.v1.";

/// Methods of the services beside it, which state no access themselves: any identity may call them. The numbers are the
/// most bytes of a request message, and the deadline in seconds.
const OTHERS: [(&str, u64, u64); 3] = [
    ("/grpc.health.v1.Health/Check", 4096, 10),
    ("/grpc.health.v1.Health/Watch", 4096, 0),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", 4096, 60),
];

/// What one method states, or is given above.
struct Row {
    path: String,
    role: &'static str,
    request_bytes_max: u64,
    tenant_request_bytes_max: u64,
    deadline_s: u64,
    /// The source of the shape of its request, or of none.
    shape: String,
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).open_file("pinion/v1/control.proto")?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    // With the options, which prost's own type of descriptors would drop.
    std::fs::write(out.join("pinion.v1.bin"), compiler.encode_file_descriptor_set())?;
    std::fs::write(out.join("access.rs"), access(&compiler.descriptor_pool())?)?;
    // It has a private key, and a `Debug` of its own in `src/proto.rs`.
    let messages = tonic_prost_build::configure().skip_debug([".pinion.v1.UploadKeyRequest"]);
    messages.compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}

/// Returns the source of the table of access and of the wrapper.
fn access(pool: &DescriptorPool) -> Result<String, Box<dyn Error>> {
    let option = pool.get_extension_by_name("pinion.v1.access").ok_or("the option pinion.v1.access is not defined")?;
    let service = pool.get_service_by_name(SERVICE).ok_or("the service is not defined")?;
    let mut rows = service.methods().map(|method| stated(&option, &method)).collect::<Result<Vec<_>, _>>()?;
    let wrapper = wrapper(&service);
    for set in [tonic_health::pb::FILE_DESCRIPTOR_SET, tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET] {
        let services: Vec<_> = DescriptorPool::decode(set)?.services().collect();
        for method in services.iter().flat_map(ServiceDescriptor::methods) {
            rows.push(given(&method)?);
        }
    }
    let mut text =
        "/// Every method of every service, with what it takes to call it.\npub const ROWS: &[Row] = &[\n".to_owned();
    for Row { path, role, request_bytes_max, tenant_request_bytes_max, deadline_s, shape } in rows {
        writeln!(
            text,
            "    Row {{ path: {path:?}, least: Role::{role}, request_bytes_max: {request_bytes_max}, \
             tenant_request_bytes_max: {tenant_request_bytes_max}, deadline_s: {deadline_s}, shape: {shape} }},"
        )?;
    }
    Ok(format!("{text}];\n\n{wrapper}"))
}

fn path(method: &MethodDescriptor) -> String {
    format!("/{}/{}", method.parent_service().full_name(), method.name())
}

/// Returns the row that a method's option states.
fn stated(option: &ExtensionDescriptor, method: &MethodDescriptor) -> Result<Row, Box<dyn Error>> {
    let path = path(method);
    let missing =
        format!("{path}: state who may call it, as option (pinion.v1.access) with role and request_bytes_max");
    let options = method.options();
    let value = options.get_extension(option);
    let access: &DynamicMessage = value.as_message().ok_or("pinion.v1.access is a message")?;
    let number =
        |name| access.get_field_by_name(name).and_then(|value| value.as_u64().or(value.as_u32().map(u64::from)));
    let role = match access.get_field_by_name("role").and_then(|value| value.as_enum_number()) {
        Some(1) => "TenantViewer",
        Some(2) => "TenantAdmin",
        Some(3) => "Operator",
        _ => return Err(missing.into()),
    };
    let (Some(request_bytes_max @ 1..), Some(deadline_s)) = (number("request_bytes_max"), number("deadline_s")) else {
        return Err(missing.into());
    };
    let of_tenants = number("tenant_request_bytes_max").filter(|bytes| *bytes > 0);
    let tenant_request_bytes_max = of_tenants.unwrap_or(request_bytes_max);
    let shape = format!("Some(&{})", shape(&method.input())?);
    Ok(Row { path, role, request_bytes_max, tenant_request_bytes_max, deadline_s, shape })
}

/// Returns the source of a message's shape: its fields that are repeated or messages, with the size of an element.
fn shape(message: &MessageDescriptor) -> Result<String, Box<dyn Error>> {
    let mut fields = String::new();
    for field in message.fields() {
        let (rust_type, inner) = match field.kind() {
            Kind::Message(inner) => (rust_type(inner.full_name()), format!("Some(&{})", shape(&inner)?)),
            Kind::String | Kind::Bytes if field.is_list() => ("String".to_owned(), "None".to_owned()),
            _ if field.is_list() => {
                return Err(format!(
                    "{}: requests have no lists of numbers, whose memory is not bounded",
                    field.full_name()
                )
                .into());
            }
            _ => continue,
        };
        let element_bytes = match field.is_list() {
            true => format!("size_of::<{rust_type}>() as u64"),
            false => "0".to_owned(),
        };
        let (number, is_list) = (field.number(), field.is_list());
        write!(
            fields,
            "Field {{ number: {number}, is_list: {is_list}, element_bytes: {element_bytes}, message: {inner} }}, "
        )?;
    }
    Ok(format!("Shape {{ fields: &[{fields}] }}"))
}

/// Returns the row that a method of another service is given here.
fn given(method: &MethodDescriptor) -> Result<Row, Box<dyn Error>> {
    let path = path(method);
    let (_, request_bytes_max, deadline_s) = *OTHERS
        .iter()
        .find(|(other, ..)| *other == path)
        .ok_or_else(|| format!("{path}: give it a row in OTHERS of control/build.rs, for it is served, too"))?;
    let (role, shape) = ("TenantViewer", "None".to_owned());
    Ok(Row { path, role, request_bytes_max, tenant_request_bytes_max: request_bytes_max, deadline_s, shape })
}

/// Returns the source of `Guarded`, with one method for each of the service.
fn wrapper(service: &ServiceDescriptor) -> String {
    let (mut streams, mut methods) = (String::new(), String::new());
    for method in service.methods() {
        let (name, function, path) = (method.name(), snake_case(method.name()), path(&method));
        let (request, response) = (rust_type(method.input().full_name()), rust_type(method.output().full_name()));
        let (request, check) = match method.is_client_streaming() {
            true => (format!("tonic::Streaming<{request}>"), "authorised_stream"),
            false => (request, "authorised"),
        };
        let response = match method.is_server_streaming() {
            true => format!("Self::{name}Stream"),
            false => response,
        };
        if method.is_server_streaming() {
            let _ = writeln!(streams, "    type {name}Stream = T::{name}Stream;");
        }
        let _ = writeln!(
            methods,
            "    async fn {function}(&self, request: Request<{request}>) -> Result<Response<{response}>, Status> {{\n        \
             let request = {check}({path:?}, request)?;\n        \
             let is_tenant = caller(&request)?.tenant().is_some();\n        \
             self.0.{function}(request).await.map_err(|status| told(is_tenant, status))\n    }}"
        );
    }
    format!(
        "/// The service, which gets only the requests that their callers may make.\n\
         pub(crate) struct Guarded<T>(pub(crate) T);\n\n\
         #[tonic::async_trait]\n\
         impl<T: proto::control_server::Control> proto::control_server::Control for Guarded<T> {{\n{streams}{methods}}}\n"
    )
}

/// Returns the path of a message's type. Types within a message are in a module of its name.
fn rust_type(full_name: &str) -> String {
    let mut path: Vec<&str> = full_name.strip_prefix(PACKAGE).unwrap_or(full_name).split('.').collect();
    let name = path.pop().unwrap_or_default();
    let modules: String = path.into_iter().map(|outer| format!("{}::", snake_case(outer))).collect();
    format!("proto::{modules}{name}")
}

/// Returns a method's name as its function is called.
fn snake_case(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}
