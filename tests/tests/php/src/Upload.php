<?php
final class Upload
{
    public static function digest(array $file): string
    {
        return $file['error'] === UPLOAD_ERR_OK ? hash_file('sha256', $file['tmp_name']) : 'none';
    }
}
